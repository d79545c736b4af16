"""The error tree: every failure a user can meet, with its HTTP status and exit code.

    LatticeError                       500 server_error            exit 1
    ├── UsageError                     400                         exit 2   a flag or environment value
    ├── BadRequest                     400 invalid_request_error            the body of a request
    │   ├── InvalidField               invalid_request
    │   ├── InvalidMessages            invalid_messages
    │   ├── UnsupportedField           unsupported_feature
    │   ├── PromptTooLong              context_length_exceeded     exit 5
    │   ├── BodyTooLarge               413 request_body_too_large
    │   ├── Unauthorized               401 invalid_api_key
    │   ├── Forbidden                  403 forbidden
    │   └── NoSuchRoute                404 not_found (405 method_not_allowed, and so on)
    ├── ModelError                                                 exit 3   weights, tokenizer, template
    │   ├── ModelNotFound              404 model_not_found
    │   ├── UnknownFormat · BrokenWeights · BadScript
    │   └── FetchFailed                a download that could not be made
    ├── InstallError                                               exit 3   back end, platform, driver
    ├── Overloaded                     429 server_busy
    ├── EngineUnavailable              503 engine_unavailable
    │   └── EngineLost                                                      it will not come back
    ├── DeadlinePassed                 504 request_timeout
    ├── SlowReader                     408 slow_reader                      seen in the log only, mostly
    ├── EngineFault                    500 internal_error
    ├── RemoteFailed                   502 remote_failed           exit 3   a server that a chat is held with
    ├── StoreFailed                                                         saved sessions cannot be read or written
    └── BenchError                                                 exit 4

A message is one sentence without a final period; `param` says where, `hint` what to do.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LatticeError(Exception):
    """A failure with a sentence meant for the user.

    `kind`, `code` and `status` are what a client sees; `exit_code` is what a shell sees.
    """

    kind = "server_error"
    code = "internal_error"
    status = 500
    exit_code = 1
    retry_after_s: int | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        hint: str | None = None,
        code: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status

    def sentence(self) -> str:
        """The message with its hint, on one line, as a client or a log shows it."""
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class UsageError(LatticeError):
    """A flag or an environment variable holds a value that cannot be used."""

    kind = "invalid_request_error"
    code = "invalid_usage"
    status = 400
    exit_code = 2


class BadRequest(LatticeError):
    """The request itself is at fault; nothing was queued."""

    kind = "invalid_request_error"
    code = "invalid_request"
    status = 400


class InvalidField(BadRequest):
    """One field has the wrong type or a value out of range."""


class InvalidMessages(BadRequest):
    """The conversation cannot be rendered: empty, unknown role, refused by the template."""

    code = "invalid_messages"


class UnsupportedField(BadRequest):
    """A field that would change the output and that is not supported; never ignored silently."""

    code = "unsupported_feature"


class PromptTooLong(BadRequest):
    """Prompt and answer together do not fit the context window."""

    code = "context_length_exceeded"
    exit_code = 5


class BodyTooLarge(BadRequest):
    """The request body is over the limit."""

    code = "request_body_too_large"
    status = 413


class Unauthorized(BadRequest):
    """The request brings no API key, or none that this server knows."""

    code = "invalid_api_key"
    status = 401


class Forbidden(BadRequest):
    """The request is not meant for this server, whoever sends it."""

    code = "forbidden"
    status = 403


class NoSuchRoute(BadRequest):
    """The path or the method is not one of ours."""

    code = "not_found"
    status = 404


class ModelError(LatticeError):
    """A model cannot be found, read or understood."""

    kind = "invalid_request_error"
    code = "model_error"
    exit_code = 3


class ModelNotFound(ModelError):
    """No model of that name is here, or the request names another than the served one."""

    code = "model_not_found"
    status = 404


class UnknownFormat(ModelError):
    """A folder or file that holds none of the formats we read."""


class BrokenWeights(ModelError):
    """A model file is missing, cut short or inconsistent; the message names the file."""


class BadScript(ModelError):
    """A scripted model's file is malformed; the message names the place."""


class FetchFailed(ModelError):
    """A download could not be made: offline, refused, wrong checksum, no room."""


class InstallError(LatticeError):
    """The machine lacks something MLX needs; the hint is the command that brings it."""

    code = "install_error"
    exit_code = 3


class Overloaded(LatticeError):
    """The waiting room is full."""

    kind = "rate_limit_error"
    code = "server_busy"
    status = 429
    retry_after_s = 1


class EngineUnavailable(LatticeError):
    """The engine is loading, stopping or broken."""

    code = "engine_unavailable"
    status = 503
    retry_after_s = 2


class EngineLost(EngineUnavailable):
    """The engine has ended or is broken."""


class DeadlinePassed(LatticeError):
    """The time that a request may take is over."""

    code = "request_timeout"
    status = 504


class SlowReader(LatticeError):
    """A client does not take what is made for it."""

    kind = "invalid_request_error"
    code = "slow_reader"
    status = 408


class EngineFault(LatticeError):
    """Generation failed; the cause is in the log, not in the message."""


class RemoteFailed(LatticeError):
    """A server elsewhere could not be asked, or did not answer properly."""

    code = "remote_failed"
    status = 502
    exit_code = 3


class StoreFailed(LatticeError):
    """Saved sessions cannot be read or written; a talk goes on without."""


@contextmanager
def panics_told(what: str) -> Iterator[None]:
    """A panic of Rust code (tokenizers, llguidance) as an EngineFault, which costs one request: it comes as a
    BaseException, which nobody catches, and would end a thread that others wait for.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise EngineFault(f"{what} failed") from error


def is_panic(error: BaseException) -> bool:
    """UPSTREAM: pyo3 makes the class anew in each library, so that it can only be known by its name."""
    return type(error).__name__ == "PanicException"


class BenchError(LatticeError):
    """A fixture is malformed or an answer differs from its record."""

    code = "bench_error"
    exit_code = 4
