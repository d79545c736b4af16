"""Where a server elsewhere is, and the models it lists.

Thread: any (each call blocks its thread)
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from lattice_cli.address import Address, read_address
from lattice_cli.chat.remote_errors import unreachable, wrong_status
from lattice_cli.errors import LatticeError, RemoteFailed, UsageError

LIST_TIMEOUT_S = 20.0
# Where servers say how long a context may be: vLLM and SGLang, LM Studio, OpenRouter and others, llama-server.
WINDOW_KEYS = ("max_model_len", "loaded_context_length", "context_length", "context_window", "max_context_length")


@dataclass(frozen=True, slots=True)
class Server:
    """Where it is, and the key it wants."""

    url: str
    address: Address
    api_key: str | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """For messages."""
        return f"{self.address.host}:{self.address.port}"

    def path(self, name: str) -> str:
        """Of `chat/completions` and the like; an address without a path is taken for one with `/v1`."""
        return f"{self.address.path or '/v1'}/{name}"

    def headers(self) -> dict[str, str]:
        """What every request carries."""
        known = {"content-type": "application/json", "user-agent": "lattice-cli"}
        return known | ({"authorization": f"Bearer {self.api_key}"} if self.api_key else {})

    def read(self, path: str, body: Any = None) -> Any:
        """The JSON at a path, or what is answered to a `body`. Blocks. Raises: RemoteFailed."""
        connection = self.address.connect(LIST_TIMEOUT_S)
        try:
            sent = None if body is None else msgspec.json.encode(body)
            connection.request("GET" if sent is None else "POST", path, sent, self.headers())
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self.host, error) from error
        finally:
            connection.close()
        if response.status != 200:
            raise wrong_status(self.host, response.status, body)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteFailed(
                f"`{self.host}` is no OpenAI-compatible server: {path} is not JSON",
                hint="with `--model NAME` no list is needed",
            ) from error


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that a server lists; `context_tokens` where it says so."""

    name: str
    context_tokens: int | None = None


def read_server(url: str, api_key: str | None) -> Server:
    """Raises: UsageError."""
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError("the API key holds characters that no header can carry", param="--api-key")
    address = read_address(url)
    if "@" in urlsplit(url).netloc:
        raise UsageError("`--url` holds a name or password", param="--url", hint="give a key with `LATTICE_API_KEY`")
    if urlsplit(url).query or urlsplit(url).fragment:
        raise UsageError("`--url` holds more than an address and a path", param="--url", hint="end it with `/v1`")
    return Server(url, address, api_key)


def offers_of(server: Server) -> list[Offer]:
    """The models it lists, in its order. Raises: RemoteFailed."""
    said = server.read(server.path("models"))
    entries = said.get("data", said.get("models")) if isinstance(said, dict) else said
    named = [entry for entry in entries or () if isinstance(entry, dict)] if isinstance(entries, list) else []
    return [Offer(str(entry["id"]), _window(server, entry)) for entry in named if entry.get("id")]


def _window(server: Server, entry: Mapping[str, Any]) -> int | None:
    for key in WINDOW_KEYS:
        if isinstance(entry.get(key), int) and entry[key] > 1:
            return int(entry[key])
    try:
        match entry.get("owned_by"):
            case "llamacpp":  # its list tells what the model was trained for, not what is served
                told = server.read(f"{server.address.prefix}/props")["default_generation_settings"]["n_ctx"]
            case "lattice":  # our own list has the four fields that every client knows
                told = server.read(f"{server.address.prefix}/tokenize", {"prompt": "a"})["max_model_len"]
            case _:
                return None
    except (LatticeError, KeyError, TypeError):
        return None
    return told if isinstance(told, int) and told > 1 else None
