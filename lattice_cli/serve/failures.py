"""Every failure -> the four-field envelope of OpenAI, with its status and headers.

Knows our error tree and the web framework's; knows no request's content. No class name and no HTML ever leaves.

Thread: any
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lattice_cli.errors import BadRequest, BodyTooLarge, EngineFault, LatticeError, NoSuchRoute

if TYPE_CHECKING:
    import falcon

CODES = {400: "invalid_request", 411: "length_required", 413: BodyTooLarge.code, 415: "unsupported_media_type"}


class ClientGone(Exception):
    """Nobody waits for the answer any more; not a failure. Its status is never seen by anyone."""

    status = 499


def envelope(error: LatticeError) -> dict[str, Any]:
    """The body of an error answer, and the data of an error event."""
    fields = {"message": error.sentence(), "type": error.kind, "param": error.param, "code": error.code}
    return {"error": fields}


def envelope_bytes(error: LatticeError) -> bytes:
    """ASCII, with an end of line for people with curl."""
    return json.dumps(envelope(error)).encode() + b"\n"


def unexpected() -> EngineFault:
    """What a client hears of a fault that is ours; the caller writes the cause to the log."""
    return EngineFault("the server failed to answer this request")


def no_route(method: str, path: str, routes: tuple[str, ...]) -> NoSuchRoute:
    """Report 146: say what there is."""
    return NoSuchRoute(f"there is no `{method} {path[:200]}`", hint=f"there are {', '.join(routes)}")


def wrong_method(method: str, path: str, routes: tuple[str, ...]) -> NoSuchRoute:
    return NoSuchRoute(
        f"`{path[:200]}` does not answer `{method}`",
        hint=f"there are {', '.join(routes)}",
        code="method_not_allowed",
        status=405,
    )


def of_framework(error: falcon.HTTPError, method: str, path: str, routes: tuple[str, ...]) -> LatticeError:
    """One of the framework's own refusals as one of ours."""
    status = error.status_code
    if status == 404:
        return no_route(method, path, routes)
    if status == 405:
        return wrong_method(method, path, routes)
    if status >= 500:
        return unexpected()
    message = (error.description or error.title or "the request is malformed").rstrip(".")
    return BadRequest(message, status=status, code=CODES.get(status, "invalid_request"))
