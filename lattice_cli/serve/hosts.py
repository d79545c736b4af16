"""The names and addresses that a request must be addressed to.

A page that a browser runs can reach this machine under a name of its own that suddenly means 127.0.0.1 (DNS rebinding):
the Host header gives it away.

Knows names and addresses; knows no framework, no key and no engine.

Thread: any
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

ANY = "*"

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK: tuple[Network, ...] = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1"))
EVERYWHERE: tuple[Network, ...] = (ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0"))


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names and addresses that requests may be sent to."""

    names: frozenset[str] = frozenset()
    addresses: tuple[Network, ...] = ()

    def admit(self, host: str | None) -> bool:
        """Whether a Host header names this server. Who sends none is no browser."""
        if host is None or ANY in self.names:
            return True
        name = _without_port(host.strip().lower())
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.removesuffix(".") in self.names
        plain = getattr(address, "ipv4_mapped", None) or address
        return any(plain in network for network in self.addresses) or name in self.names


ANY_HOST = Hosts(frozenset({ANY}))


def hosts_of(host: str, address: str, also: tuple[str, ...] = ()) -> Hosts:
    """The names of a server that was told to listen on `host` and listens on `address`; `also` are --allow-host."""
    names = {_without_port(name.lower()) for name in (host, *also)}
    bound = ipaddress.ip_address(address.partition("%")[0])
    if bound.is_unspecified:  # an address is no name, and rebinding needs a name
        machine = socket.gethostname().lower()
        return Hosts(frozenset({*names, "localhost", machine, f"{machine}.local"}), EVERYWHERE)
    if bound.is_loopback:
        return Hosts(frozenset({*names, "localhost"}), LOOPBACK)
    return Hosts(frozenset(names), (ipaddress.ip_network(bound),))


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _without_port(name: str) -> str:
    """`[::1]:80` and `localhost:80` without their port; a bare IPv6 address has none."""
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0] if name.count(":") == 1 else name
