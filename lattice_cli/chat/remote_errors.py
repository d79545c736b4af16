"""What a server elsewhere refuses, or why it cannot be reached, in one sentence.

Thread: any
"""

from __future__ import annotations

import re
import ssl

import msgspec

from lattice_cli.errors import LatticeError, PromptTooLong, RemoteFailed

TOO_LONG = re.compile(r"context.{0,20}(length|window|size)|exceed.{0,40}context|maximum.{0,20}tokens|n_ctx", re.I)
LONGEST_WORDS = 500
UNREACHABLE, REFUSED = "unreachable", "refused"  # codes: there is no connection; the key is not the right one


def unreachable(host: str, error: Exception) -> RemoteFailed:
    """Why there is no connection, or none any more."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    hint = "is the server running?"
    if isinstance(error, TimeoutError):
        reason = "it does not answer in time"
    elif isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not trusted, {getattr(error, 'verify_message', reason)}"
        hint = "`SSL_CERT_FILE` names a file of certificates to trust"
    elif isinstance(error, ssl.SSLError):
        reason, hint = "what answers there is no https", "`http://`, without the s?"
    return RemoteFailed(f"`{host}` cannot be reached: {reason}", hint=hint, code=UNREACHABLE)


def wrong_status(host: str, status: int, body: bytes) -> LatticeError:
    """What a server refuses with, in one sentence; PromptTooLong where that is what it means. `status` 0: it said it
    in the middle of an answer.
    """
    told, kind = said_in(body)
    if status in (0, 400, 413, 500) and (kind == "context_length_exceeded" or TOO_LONG.search(told)):
        return PromptTooLong(f"`{host}` refuses the prompt: {told}")
    hints = {
        401: "give its key with `--api-key` or `LATTICE_API_KEY`",
        403: "give its key with `--api-key` or `LATTICE_API_KEY`",
        404: "`--url` wants the address with its `/v1`, and `--model` a name that the server lists",
    }
    where = f"`{host}` failed in the middle of the answer" if not status else f"`{host}` refuses with status {status}"
    code = REFUSED if status in (401, 403) else None
    return RemoteFailed(f"{where}: {told}", hint=hints.get(status), code=code, status=status or None)


def said_in(body: bytes) -> tuple[str, str | None]:
    """The message of an error body in any of the usual shapes, on one line, and its code."""
    code = None
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = re.sub(r"<[^>]*>", " ", body[:4000].decode("utf-8", "replace"))
    while isinstance(said, dict):
        kind = said.get("code") or said.get("type")
        code = kind if isinstance(kind, str) else code
        said = next((said[key] for key in ("error", "message", "detail") if said.get(key)), str(said))
    text = " ".join(str(said).split())[:LONGEST_WORDS].rstrip(".")
    return text or "it does not say why", code
