"""A server elsewhere as a partner: any that speaks OpenAI's chat completions.

It yields the events that the engine would, so nothing beyond this module knows of HTTP. Knows requests and lists of
models; how a stream is read is in remote_stream.py.

Thread: any
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice_cli.address import Address, read_address
from lattice_cli.chat.partner import Count, Partner, Question
from lattice_cli.chat.remote_stream import RemoteStream, wrong_status
from lattice_cli.conversation import Turn
from lattice_cli.engine.worker import Ticket, new_job_id
from lattice_cli.errors import RemoteFailed, UsageError
from lattice_cli.job import Job, Limits, Prompt, Sampling, SamplingChoice

LIST_TIMEOUT_S = 20.0
CHARACTERS_A_TOKEN = 3.5  # until an answer's usage tells
TOKENS_A_TURN = 4
NO_SAMPLING = Sampling()
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

    def read(self, path: str) -> Any:
        """The JSON at a path. Blocks. Raises: RemoteFailed."""
        connection = self.address.connect(LIST_TIMEOUT_S)
        try:
            connection.request("GET", path, headers=self.headers())
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise unreachable(self, error) from error
        finally:
            connection.close()
        if response.status != 200:
            raise wrong_status(self.host, response.status, body)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RemoteFailed(f"`{self.host}` is no OpenAI-compatible server: {path} is not JSON") from error


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that a server lists; `context_tokens` where it says so."""

    name: str
    context_tokens: int | None = None


def read_server(url: str, api_key: str | None) -> Server:
    """Raises: UsageError."""
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise UsageError("the API key holds characters that no header can carry", param="--api-key")
    return Server(url, read_address(url), api_key)


def open_remote(server: Server, model: str | None, context_tokens: int | None = None) -> RemotePartner:
    """Ask the server what it has, and choose `model`, or else the first. Blocks. Raises: RemoteFailed."""
    try:
        offers = offers_of(server)
    except RemoteFailed as error:
        if model is None or error.status not in (404, 405):  # it has no list, but may have the model
            raise
        offers = []
    if model is None and not offers:
        raise RemoteFailed(f"`{server.host}` lists no model", hint="name one with `--model`")
    return RemotePartner(server, _chosen(server, model or offers[0].name, offers), offers, context_tokens)


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
    if entry.get("owned_by") == "llamacpp":  # its list tells what the model was trained for, not what is served
        try:
            told = server.read(f"{server.address.prefix}/props")["default_generation_settings"]["n_ctx"]
        except (RemoteFailed, KeyError, TypeError):
            return None
        return told if isinstance(told, int) and told > 1 else None
    return None


def _chosen(server: Server, model: str, offers: Sequence[Offer]) -> Offer:
    """By its name. A server may have more than it lists, so another name is tried, not refused."""
    return next((offer for offer in offers if offer.name == model), Offer(model))


class RemotePartner:
    """One model of a server. Tokens of a prompt are estimated from what the last answer's usage told."""

    def __init__(
        self, server: Server, offer: Offer, offers: Sequence[Offer] = (), context_tokens: int | None = None
    ) -> None:
        self.server, self._offer, self._offers, self._context_tokens = server, offer, offers, context_tokens
        self._characters_a_token = CHARACTERS_A_TOKEN

    @property
    def name(self) -> str:
        return self._offer.name

    @property
    def context_tokens(self) -> int | None:
        return self._context_tokens or self._offer.context_tokens

    @property
    def advice(self) -> SamplingChoice:
        return SamplingChoice()

    @property
    def floor(self) -> None:
        return None

    def count(self, question: Question) -> Count:
        turns = question.turns
        return Count(TOKENS_A_TURN * len(turns) + round(_characters(turns) / self._characters_a_token), exact=False)

    def ask(self, question: Question, max_tokens: int | None) -> Ticket:
        job = Job(new_job_id(), Prompt((), ""), NO_SAMPLING, Limits(max_tokens or 0))
        body = self._body(question, max_tokens)

        def learn(prompt_tokens: int) -> None:
            text_tokens = prompt_tokens - TOKENS_A_TURN * len(question.turns)
            if text_tokens > 0 and _characters(question.turns) > 0:
                self._characters_a_token = max(0.5, _characters(question.turns) / text_tokens)

        stream = RemoteStream(self.server, body, job, learn)
        return stream.begin()

    def models(self) -> Sequence[str]:
        return [self.name, *(offer.name for offer in self._offers if offer.name != self.name)]

    def switched(self, name: str) -> Partner:
        try:
            offers = offers_of(self.server)
        except RemoteFailed as error:
            if error.status not in (404, 405):
                raise
            offers = []
        if offers and name not in [offer.name for offer in offers]:
            listed = ", ".join(f"`{offer.name}`" for offer in offers[:10])
            raise UsageError(f"`{self.server.host}` has no model `{name}`", param="model", hint=f"it lists {listed}")
        return RemotePartner(self.server, _chosen(self.server, name, offers), offers, self._context_tokens)

    def close(self, timeout_s: float) -> bool:
        return True

    def _body(self, question: Question, max_tokens: int | None) -> dict[str, Any]:
        """What a person chose, and nothing that nobody chose: the server's own defaults hold."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [_message(turn) for turn in question.turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            **question.manner.fields,
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if question.continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if not question.thinks:
            body |= {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}
        if question.schema is not None:
            schema = {"name": "answer", "strict": True, "schema": json.loads(question.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


def unreachable(server: Server, error: Exception) -> RemoteFailed:
    """Why there is no answer, in one sentence."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        reason = "it does not answer in time"
    return RemoteFailed(f"`{server.host}` cannot be reached: {reason}", hint="is the server running?")


def _message(turn: Turn) -> dict[str, str]:
    message = {"role": str(turn.role), "content": turn.text}
    return message | ({"reasoning_content": turn.reasoning} if turn.reasoning else {})


def _characters(turns: Sequence[Turn]) -> int:
    return sum(len(turn.text) for turn in turns)
