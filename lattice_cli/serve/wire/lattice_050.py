"""lattice_serve 0.5.0's chat request and failures: it takes what it can read and makes the best of it; what it cannot
read its framework (axum 0.8) refuses in plain text.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lattice_cli.conversation import Role, TextPart, Turn
from lattice_cli.errors import BadRequest, LatticeError
from lattice_cli.events import FinishReason
from lattice_cli.serve.wire import Ask, Dialect, Echo, Page
from lattice_cli.serve.wire.lattice_answers import JSON, LatticePages, LatticeVoice, compact, told
from lattice_cli.serve.wire.lattice_fields import request, sampling_of
from lattice_cli.serve.wire.serde.place import SerdeError
from lattice_cli.serve.wire.serde.reader import Reader
from lattice_cli.serve.wire.serde.rust import spelled_json
from lattice_cli.serve.wire.serde.shapes import Field, anything, record, text

ROLES: Mapping[str, Role] = {"system": "system", "assistant": "assistant"}
REQUEST = request(record("InMsg", {"role": Field(text), "content": Field(anything, lambda: None)}))
JSON_MEDIA = re.compile(r"application/(json|[^;\s]*\+json)\s*(;.*)?", re.IGNORECASE)


class FrameworkRefusal(BadRequest):
    """Said by axum, in plain text. Source: https://docs.rs/axum/0.8/axum/extract/rejection"""


class Lattice050(LatticePages):
    """See `Wire`."""

    def dialects(self) -> Mapping[str, Dialect]:
        return {"/v1/chat/completions": ChatDialect()}

    def check_head(self, media_type: str | None, encoding: str | None, length: int | None) -> None:
        if not JSON_MEDIA.fullmatch((media_type or "").strip()):
            raise FrameworkRefusal("Expected request with `Content-Type: application/json`", status=415)

    def too_large(self, max_bytes: int) -> LatticeError:
        return FrameworkRefusal("Failed to buffer the request body: length limit exceeded", status=413)

    def refusal(self, error: LatticeError) -> Page:
        if isinstance(error, FrameworkRefusal):
            return Page(error.status, "text/plain; charset=utf-8", error.message.encode())
        status, _, _, message = told(error)
        return Page(status, JSON, compact({"error": {"message": message, "type": "invalid_request_error"}}))


class ChatDialect:
    """See `Dialect`."""

    def parse(self, body: bytes) -> Ask:
        said = _read(body)
        if not said["messages"]:
            raise BadRequest("`messages` must not be empty")
        return Ask(
            turns=tuple(_turn(message["role"], message["content"]) for message in said["messages"]),
            model=said["model"],
            sampling=sampling_of(said),
            max_tokens=said["max_tokens"],
            reasoning_budget=said["reasoning_budget"],
            stream=bool(said["stream"]),
        )

    def voice(self, ask: Ask, model: str, echoes: Sequence[Echo] = ()) -> LatticeVoice:
        return LatticeVoice(model, _finish)


def _finish(reason: FinishReason) -> str:
    return "stop"


def _read(body: bytes) -> dict[str, Any]:
    reader = Reader(body)
    try:
        said: dict[str, Any] = REQUEST(reader)
        reader.end()
    except SerdeError as error:
        if error.data:
            lead, status = "Failed to deserialize the JSON body into the target type", 422
        else:
            lead, status = "Failed to parse the request body as JSON", 400
        raise FrameworkRefusal(f"{lead}: {error.sentence()}", status=status) from None
    return said


def _turn(role: str, content: Any) -> Turn:
    """Whoever is neither system nor assistant is the user."""
    return Turn(ROLES.get(role, "user"), (TextPart(_text(content)),))


def _text(content: Any) -> str:
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            texts = (part.get("text") for part in content if isinstance(part, dict))
            return "".join(text for text in texts if isinstance(text, str))
        case _:
            return spelled_json(content)
