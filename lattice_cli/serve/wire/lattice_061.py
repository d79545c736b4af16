"""lattice_serve 0.6.1's chat request and failures: what it cannot do it refuses by name, and it checks in this order.

    parts over the limit, JSON and types, fields it lacks, no messages, each message's role and then its content,
    no tokens at all; later the window

Thread: any
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lattice_cli.conversation import Role, TextPart, Turn
from lattice_cli.errors import BadRequest, BodyTooLarge, LatticeError
from lattice_cli.events import FinishReason
from lattice_cli.serve.wire import Ask, Dialect, Echo, Page
from lattice_cli.serve.wire.lattice_answers import JSON, LatticePages, LatticeVoice, compact, told
from lattice_cli.serve.wire.lattice_fields import request, sampling_of
from lattice_cli.serve.wire.lattice_parts import Part, content, text_of
from lattice_cli.serve.wire.preflight import check_parts
from lattice_cli.serve.wire.serde.place import SerdeError
from lattice_cli.serve.wire.serde.reader import Reader
from lattice_cli.serve.wire.serde.shapes import Field, anything, boolean, option, record, text, whole

ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


class Lattice061(LatticePages):
    """See `Wire`. A body's length is all that is asked of it before it is read."""

    def dialects(self) -> Mapping[str, Dialect]:
        return {"/v1/chat/completions": ChatDialect()}

    def check_head(self, media_type: str | None, encoding: str | None, length: int | None) -> None:
        return

    def too_large(self, max_bytes: int) -> LatticeError:
        return BodyTooLarge(f"request body exceeds {max_bytes} bytes")

    def refusal(self, error: LatticeError) -> Page:
        status, kind, code, message = told(error)
        return Page(status, JSON, compact({"error": {"message": message, "type": kind, "code": code, "param": None}}))


class ChatDialect:
    """See `Dialect`."""

    def parse(self, body: bytes) -> Ask:
        check_parts(body)
        said = _read(body)
        _refuse_lacking(said)
        if not said["messages"]:
            raise BadRequest("`messages` must not be empty", code="invalid_messages")
        turns = tuple(_turn(message["role"], message["content"]) for message in said["messages"])
        max_tokens = said["max_completion_tokens"] if said["max_tokens"] is None else said["max_tokens"]
        if max_tokens == 0:
            raise BadRequest("max_tokens must be at least 1", code="invalid_max_tokens")
        return Ask(
            turns=turns,
            model=said["model"],
            sampling=sampling_of(said),
            max_tokens=max_tokens,
            reasoning_budget=said["reasoning_budget"],
            stream=bool(said["stream"]),
        )

    def voice(self, ask: Ask, model: str, echoes: Sequence[Echo] = ()) -> LatticeVoice:
        return LatticeVoice(model, _finish)


def _finish(reason: FinishReason) -> str:
    return "stop" if reason == "stop" else "length"


# Reading.

RESPONSE_FORMAT = record("ResponseFormat", {"type": Field(text)})
REQUEST = request(
    record("InMsg", {"role": Field(text), "content": Field(content)}),
    {
        "max_completion_tokens": option(whole("usize")),
        "tools": option(anything),
        "tool_choice": option(anything),
        "response_format": option(RESPONSE_FORMAT),
        "n": option(whole("usize")),
        "logprobs": option(boolean),
        "top_logprobs": option(whole("usize")),
        "stop": option(anything),
    },
)


def _read(body: bytes) -> dict[str, Any]:
    reader = Reader(body)
    try:
        said: dict[str, Any] = REQUEST(reader)
        reader.end()
    except SerdeError:
        raise BadRequest("invalid JSON request body", code="invalid_request_body") from None
    return said


# Refusing.


def _refuse_lacking(said: Mapping[str, Any]) -> None:
    """Raises: BadRequest for the first field that asks for what 0.6.1 cannot do."""
    if said["tools"] is not None or said["tool_choice"] is not None:
        _lacking("tools and tool_choice are not supported by this server")
    if (said["n"] or 1) > 1:
        _lacking("n > 1 is not supported")
    form = said["response_format"]
    if form is not None and form["type"] != "text":
        _lacking(f"response_format.type '{form['type']}' is not supported; use 'text'")
    if said["logprobs"] or said["top_logprobs"] is not None:
        _lacking("logprobs/top_logprobs are not supported by this server")
    if said["stop"] is not None:
        _lacking("stop is not supported by this server")
    first, second = said["max_tokens"], said["max_completion_tokens"]
    if first is not None and second is not None and first != second:
        raise BadRequest(f"max_tokens ({first}) and max_completion_tokens ({second}) differ; supply only one")


def _lacking(message: str) -> NoReturn:
    raise BadRequest(message, code="unsupported_feature")


def _turn(role: str, said: str | Sequence[Part]) -> Turn:
    if role in ("tool", "developer"):
        _lacking(f"role '{role}' is not supported by this server")
    if role not in ROLES:
        raise BadRequest(f"unsupported role '{role}'; must be 'system', 'user', or 'assistant'", code="invalid_role")
    return Turn(ROLES[role], (TextPart(text_of(said)),))
