"""The manners of OpenAI's API, and ours where it has none: every page is JSON, every failure the four-field envelope.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lattice_cli import __version__
from lattice_cli.errors import BadRequest, BodyTooLarge, LatticeError
from lattice_cli.policy import MEBIBYTE
from lattice_cli.serve.failures import CODES, envelope_bytes
from lattice_cli.serve.wire import Dialect, Page
from lattice_cli.serve.wire.chat import ChatDialect
from lattice_cli.serve.wire.completions import CompletionsDialect

JSON = "application/json"


class OpenAi:
    """See `Wire`."""

    def dialects(self) -> Mapping[str, Dialect]:
        return {"/v1/chat/completions": ChatDialect(), "/v1/completions": CompletionsDialect()}

    def check_head(self, media_type: str | None, encoding: str | None, length: int | None) -> None:
        """Only plain JSON with a length.

        NOTE: a JSON content type is not asked for pedantry: a web page may send `text/plain` anywhere without
        asking, and must not be able to keep this machine busy.
        """
        media = (media_type or JSON).split(";")[0].strip().lower()
        if not (media.endswith(("/json", "+json"))):
            raise BadRequest("the body must be sent as `Content-Type: application/json`", status=415, code=CODES[415])
        if (encoding or "identity").lower() != "identity":
            raise BadRequest("the body must not be compressed", status=415, code=CODES[415])
        if length is None:
            raise BadRequest("the request has neither a body nor a length of one", status=411, code=CODES[411])

    def too_large(self, max_bytes: int) -> LatticeError:
        return BodyTooLarge(f"the body is larger than {max_bytes / MEBIBYTE:g} MiB", hint="see `--max-body`")

    def refusal(self, error: LatticeError) -> Page:
        return Page(error.status, JSON, envelope_bytes(error))

    def health(self, state: str, *, ready: bool) -> Page:
        return as_page({"status": "ok"}) if ready else as_page({"status": state}, 503)

    def root(self, endpoints: Sequence[str]) -> Page:
        return as_page({"name": "lattice", "object": "engine", "version": __version__, "endpoints": list(endpoints)})

    def models(self, names: Sequence[str], started_s: int) -> Page:
        return as_page({"object": "list", "data": [model_entry(name, started_s) for name in names]})


def model_entry(served_id: str, created_s: int) -> dict[str, Any]:
    """One model as the list has it."""
    return {"id": served_id, "object": "model", "created": created_s, "owned_by": "lattice"}


def as_page(value: Any, status: int = 200) -> Page:
    """JSON in ASCII, with an end of line for people with curl."""
    return Page(status, JSON, json.dumps(value).encode("ascii") + b"\n")
