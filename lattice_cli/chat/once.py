"""One answer on stdout and nothing else there: `--prompt`, pipes, `--json`, `--schema`.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from lattice_cli.chat.actions import Asking, Talk, WindowFull
from lattice_cli.chat.exchange import Exchange, Interrupts, View
from lattice_cli.console import lenient, say
from lattice_cli.engine.completion import Completion
from lattice_cli.errors import LatticeError, PromptTooLong, UsageError
from lattice_cli.events import Event

INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell counts SIGINT and SIGPIPE
LONG_TEXT, LONG_ANSWER = "give a shorter text", ", or ask for less with `--max-tokens`"
LONG_TALK = "`lattice chat --session NAME` in a terminal can shorten the conversation"


class Unseen:
    """A view that shows nothing: what comes is told at the end."""

    def begin(self) -> None:
        """Nothing to show."""

    def show(self, event: Event) -> None:
        """Nothing to show."""

    def tick(self) -> None:
        """Nothing to show."""

    def again(self) -> None:
        """Nothing to redraw."""

    def end(self) -> None:
        """Nothing to show."""


def open_stdout() -> TextIO:
    """Raises: UsageError where it is closed."""
    stdout = lenient(sys.stdout)
    if stdout is None:
        raise UsageError("stdout is closed, so there is nowhere to answer")
    return stdout


def answer_once(
    talk: Talk, text: str, stdout: TextIO, interrupts: Interrupts, *, as_json: bool, quiet: bool, constrained: bool
) -> int:
    """Ask, write, and the exit status.

    Raises: PromptTooLong with the numbers, BadRequest, and the failure that ended the answer.
    """
    from lattice_cli.chat.plain import PlainView

    with interrupts.caught():
        view: View = Unseen() if as_json else PlainView(stdout, sys.stderr)
        exchange = Exchange(view, interrupts, quiet=quiet)
        try:
            asking = talk.ask(text)
            completion = exchange.answer(asking)
            note = talk.keep(asking, completion)
            if as_json and completion.failed is None:
                stdout.write(as_object(talk, asking, completion) + "\n")
            stdout.flush()
        except WindowFull as full:
            shorter = LONG_TEXT if full.no_room else LONG_TEXT + LONG_ANSWER
            raise PromptTooLong(full.message, hint=LONG_TALK if full.can_shorten else shorter) from full
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())  # what is left in the buffer goes there
            if isinstance(error, BrokenPipeError):
                return PIPE_CLOSED
            raise LatticeError(f"the answer could not be written: {error.strerror}") from error
    if completion.failed is not None:
        raise completion.failed.error
    if note and completion.finished is not None:
        say(note)
    if interrupts.count:
        return INTERRUPTED
    if constrained:
        check_whole(completion)
    return 0


def as_object(talk: Talk, asking: Asking, completion: Completion) -> str:
    """The answer with all that is known of it, as JSON on one line. Counts that a server did not tell are null."""
    finished = completion.finished
    usage, timing = (finished.usage, finished.timing) if finished else (None, None)
    told = usage is not None and bool(usage.prompt_tokens or usage.completion_tokens)
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    } if usage is not None and told else {}  # fmt: skip
    times = {"first_token_s": round(timing.first_token_s, 4), "decode_s": round(timing.decode_s, 4)} if timing else None
    said = {
        "answer": completion.answer.strip("\r\n"),
        "reasoning": completion.reasoning.strip("\r\n") or None,
        "finish_reason": finished.reason if finished else "cancelled",
        "usage": counts or None,
        "timing": times,
        "model": talk.partner.name,
    }
    return json.dumps(said, ensure_ascii=(sys.stdout.encoding or "").lower() not in ("utf-8", "utf8"))


def read_schema(path: str) -> str:
    """The JSON schema in a file, as JSON. Raises: UsageError."""
    file = Path(path).expanduser()
    try:
        text = file.read_bytes().decode("utf-8-sig")
        schema = json.loads(text)
    except OSError as error:
        raise UsageError(f"`{file}` cannot be read: {error.strerror or error}", param="--schema") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"`{file}` is not UTF-8", param="--schema") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{file}` holds no JSON: {error}", param="--schema") from error
    if not isinstance(schema, dict | bool):
        raise UsageError(f"`{file}` holds no JSON schema: it must be an object", param="--schema")
    return json.dumps(schema, ensure_ascii=False)


def check_whole(completion: Completion) -> None:
    """A constrained answer must be JSON: it may have been cut, or a server may not have bound it.

    Raises: LatticeError.
    """
    cut = completion.finished is not None and completion.finished.reason == "length"
    try:
        json.loads(completion.answer)
    except (ValueError, RecursionError) as error:
        why = "it was cut" if cut else "the server did not keep to it"
        raise LatticeError(
            f"the answer does not follow the schema: {why}",
            hint="more `--max-tokens`" if cut else None,
        ) from error
