"""Who may ask: names, keys and origins, without a server.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lattice_cli.errors import Forbidden, Unauthorized, UsageError
from lattice_cli.serve.access import Access, check_keys, check_origins
from lattice_cli.serve.hosts import Hosts, hosts_of, is_loopback

pytestmark = pytest.mark.pure


def headers(**said: str) -> Callable[[str], str | None]:
    """As a framework would ask for them: `Access-Control-Request-Method` is `access_control_request_method` here."""
    return lambda name: said.get(name.lower().replace("-", "_"))


LOOPBACK = hosts_of("127.0.0.1", "127.0.0.1")
WILDCARD = hosts_of("0.0.0.0", "0.0.0.0")
OWN = hosts_of("box.lan", "192.168.1.5", ("proxy.example", "Other.Example:8443"))


@pytest.mark.parametrize(
    ("hosts", "host", "admitted"),
    [
        (LOOPBACK, None, True),
        (LOOPBACK, "127.0.0.1", True),
        (LOOPBACK, "127.0.0.1:11435", True),
        (LOOPBACK, "127.8.8.8:1", True),
        (LOOPBACK, "localhost:11435", True),
        (LOOPBACK, "LOCALHOST", True),
        (LOOPBACK, "localhost.", True),
        (LOOPBACK, "[::1]:11435", True),
        (LOOPBACK, "[::ffff:127.0.0.1]", True),
        (LOOPBACK, "evil.example", False),
        (LOOPBACK, "evil.example:11435", False),
        (LOOPBACK, "localhost.evil.example", False),
        (LOOPBACK, "127.0.0.1.evil.example", False),
        (LOOPBACK, "127.0.0.1, evil.example", False),
        (LOOPBACK, "evil.example@127.0.0.1", False),
        (LOOPBACK, "192.168.1.5", False),
        (LOOPBACK, "0.0.0.0", False),
        (LOOPBACK, "", False),
        (LOOPBACK, "*", False),
        (WILDCARD, "192.168.1.5:11435", True),
        (WILDCARD, "[fe80::1]:11435", True),
        (WILDCARD, "localhost", True),
        (WILDCARD, "evil.example", False),
        (OWN, "box.lan:80", True),
        (OWN, "192.168.1.5", True),
        (OWN, "proxy.example", True),
        (OWN, "other.example", True),
        (OWN, "192.168.1.6", False),
        (OWN, "localhost", False),
        (Hosts(frozenset({"*"})), "evil.example", True),
        (hosts_of("::1", "::1"), "[::1]:80", True),
        (hosts_of("::1", "::1"), "evil.example", False),
        (hosts_of("fe80::1%eth0", "fe80::1%eth0"), "[fe80::1]:80", True),
    ],
)
def test_a_host_is_the_servers_own_or_refused(hosts: Hosts, host: str | None, admitted: bool) -> None:
    """DNS rebinding: a page's own name comes to mean 127.0.0.1, and its origin is then this server's."""
    assert hosts.admit(host) is admitted
    refused = Access(hosts).refusal("GET", "/health", lambda name: host if name == "Host" else None)
    assert isinstance(refused, Forbidden) is not admitted


LOCKED = Access(keys=("first-key", "second-key"))


@pytest.mark.parametrize(
    "said",
    [
        {"authorization": "Bearer first-key"},
        {"authorization": "bearer second-key"},
        {"authorization": "Bearer  first-key "},
        {"x_api_key": "second-key"},
    ],
)
def test_any_key_of_several_lets_in(said: dict[str, str]) -> None:
    assert LOCKED.refusal("POST", "/v1/chat/completions", headers(**said)) is None


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer first"},
        {"authorization": "Bearer first-key2"},
        {"authorization": "Bearer FIRST-KEY"},
        {"authorization": "Bearer first-key second-key"},
        {"authorization": "Basic first-key"},
        {"authorization": "first-key"},
        {"authorization": "Bearer \xff\u0100"},
        {"x_api_key": "nobody"},
        {"authorization": "Bearer wrong", "x_api_key": "first-key"},
    ],
)
def test_anything_else_does_not(said: dict[str, str]) -> None:
    for path in ("/v1/chat/completions", "/metrics", "/", "/nowhere", "/health/", "//health", "/HEALTH"):
        refused = LOCKED.refusal("GET", path, headers(**said))
        assert isinstance(refused, Unauthorized)
        assert "first" not in refused.sentence()
    assert LOCKED.refusal("GET", "/health", headers(**said)) is None


def test_without_keys_nobody_is_asked_for_one() -> None:
    assert Access().refusal("GET", "/metrics", headers(authorization="Bearer whatever")) is None


@pytest.mark.parametrize("key", ["", " ", "a b", "ключ", "a\n"])
def test_a_key_that_no_header_can_carry_is_a_usage_error_that_does_not_say_it(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_keys(("good", key))
    assert "good" not in caught.value.sentence()


@pytest.mark.parametrize(
    "origin", ["localhost:3000", "http://a.example/", "http://a.example/path", "", "http://", "a b"]
)
def test_an_origin_that_no_browser_sends_is_a_usage_error(origin: str) -> None:
    with pytest.raises(UsageError):
        check_origins((origin,))


def test_origins_are_compared_as_browsers_send_them() -> None:
    assert check_origins(("HTTP://Localhost:3000", "*", "app://obsidian.md", "null")) == (
        "http://localhost:3000",
        "*",
        "app://obsidian.md",
        "null",
    )


PAGE = "http://localhost:3000"


def test_cross_origin_headers_are_for_the_origins_named() -> None:
    one = Access(origins=(PAGE,))
    told = one.cross_origin(headers(origin=PAGE))
    assert told["Access-Control-Allow-Origin"] == PAGE
    assert (told["Access-Control-Allow-Credentials"], told["Vary"]) == ("true", "Origin")
    for other in ("http://evil.example", "http://localhost:3001", "https://localhost:3000", "null", ""):
        assert one.cross_origin(headers(origin=other)) == {"Vary": "Origin"}
    assert one.cross_origin(headers()) == {"Vary": "Origin"}
    assert Access().cross_origin(headers(origin=PAGE)) == {}


def test_all_origins_never_come_with_credentials() -> None:
    told = Access(origins=("*",)).cross_origin(headers(origin="http://evil.example"))
    assert told["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in told


def test_a_preflight_needs_no_key_and_only_a_preflight_does_not() -> None:
    access = Access(keys=("k",), origins=(PAGE,))
    asked = headers(origin=PAGE, access_control_request_method="POST")
    assert access.refusal("OPTIONS", "/v1/chat/completions", asked) is None
    for method, said in (
        ("POST", asked),
        ("OPTIONS", headers(origin=PAGE)),
        ("OPTIONS", headers(origin="http://evil.example", access_control_request_method="POST")),
    ):
        assert isinstance(access.refusal(method, "/v1/chat/completions", said), Unauthorized)


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("authorization,content-type", "authorization,content-type"),
        ("x-stainless-os, authorization", "x-stainless-os, authorization"),
        (None, "Authorization, Content-Type"),
        ("a\r\nSet-Cookie: b", "Authorization, Content-Type"),
    ],
)
def test_a_preflight_allows_the_headers_that_it_names(asked: str | None, allowed: str) -> None:
    said = {} if asked is None else {"access_control_request_headers": asked}
    told = Access(origins=("*",)).preflight(headers(origin=PAGE, **said))
    assert told["Access-Control-Allow-Headers"] == allowed
    assert "POST" in told["Access-Control-Allow-Methods"]


def test_keys_are_hidden_wherever_they_stand() -> None:
    assert LOCKED.hidden("/v1/first-key/second-keysecond-key?") == "/v1/[key]/[key][key]?"
    assert "first-key" not in repr(LOCKED)


@pytest.mark.parametrize(
    ("address", "loopback"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("fe80::1%eth0", False)]
)
def test_which_addresses_only_this_machine_reaches(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback
