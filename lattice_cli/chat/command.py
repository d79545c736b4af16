"""`lattice chat`: options in, a conversation in this process, an exit status out.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from lattice_cli.console import is_terminal, say
from lattice_cli.errors import EngineUnavailable, LatticeError, UsageError
from lattice_cli.options import (
    KernelsOption,
    LogLevel,
    ModelOption,
    ThreadsOption,
    above_zero,
    choose_logging,
    finite,
)

if TYPE_CHECKING:
    from lattice_cli.chat.exchange import Manner, View
    from lattice_cli.chat.session import Session
    from lattice_cli.engine.worker import EngineWorker
    from lattice_cli.model.card import ModelCard
    from lattice_cli.settings import EngineSettings, Home

LOAD_TICK_S = 0.1
INTERRUPTED, PIPE_CLOSED = 130, 141  # as a shell counts SIGINT and SIGPIPE
STOP_S = 0.7


def chat_command(
    typed: typer.Context,
    model: ModelOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Answer this once, on stdout; a piped text goes below it as a document."),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of an answer [default: what fits].")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, callback=finite, help="0 always takes the likeliest token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="0 keeps all tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(max=1, callback=above_zero, help="1 keeps all tokens.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(callback=above_zero, help="1 is none.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="Makes an answer repeatable.")] = None,
    context: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="The context window in tokens [default: the model's].")
    ] = None,
    kernels: KernelsOption = None,
    threads: ThreadsOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No speed line, no word about the model.")] = False,
    log_level: Annotated[LogLevel | None, typer.Option(help="How much to say on stderr.")] = None,
) -> None:
    """Talk to a model in the terminal. With --prompt or a piped text: one answer on stdout, nothing else."""
    from lattice_cli.chat.exchange import Manner
    from lattice_cli.chat.piped import one_prompt, read_piped
    from lattice_cli.job import SamplingChoice
    from lattice_cli.settings import EngineSettings, read_home

    choose_logging(typed, log_level, None)
    sampling = SamplingChoice(temperature, top_k, top_p, repetition_penalty=repetition_penalty, seed=seed)
    manner = Manner(sampling, max_tokens, quiet)
    text = one_prompt(prompt, read_piped(sys.stdin, beside_prompt=prompt is not None))
    if text is None and not is_terminal(sys.stdin):
        raise UsageError("stdin is closed, so there is nothing to answer", hint='`lattice chat --prompt "..."`')
    home = read_home(kernels=kernels, threads=threads)
    settings = EngineSettings(max_rows=1, context_tokens=context)
    raise typer.Exit(_chat(model, system, text, manner, home, settings))


def _chat(
    model: str | None, system: str | None, text: str | None, manner: Manner, home: Home, settings: EngineSettings
) -> int:
    """Open the model, talk, close it again; the exit status. `text` None: as long as the user likes."""
    from lattice_cli.chat.session import Session
    from lattice_cli.engine.open import open_engine
    from lattice_cli.engine.worker import EngineWorker
    from lattice_cli.model.locate import find_model

    try:
        source = find_model(model, home)
    except KeyboardInterrupt:
        return INTERRUPTED
    worker = EngineWorker(lambda: open_engine(source, home, settings), settings)
    worker.start()
    session, loading, status = Session(system or None), f"loading {source.served_id}", 0
    try:
        if text is None:
            _converse(worker, loading, session, manner, home)
        else:
            status = _answer_once(worker, loading, session.asked(text), manner)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit as ending:  # SIGTERM
        status = int(ending.code or 0)
    finally:
        _stop(worker, status)
    return status


def _answer_once(worker: EngineWorker, loading: str, session: Session, manner: Manner) -> int:
    """One answer on stdout.

    Raises: what loading raises, BadRequest, and the failure that ended the answer.
    """
    from lattice_cli.chat.exchange import Exchange, Interrupts
    from lattice_cli.chat.plain import PlainView
    from lattice_cli.console import lenient

    stdout = lenient(sys.stdout)
    if stdout is None:
        raise UsageError("stdout is closed, so there is nowhere to answer")
    card = _load(worker, loading, manner)
    interrupts = Interrupts()
    with interrupts.caught():
        exchange = Exchange(worker, card, manner, PlainView(stdout, sys.stderr), interrupts)
        try:
            completion = exchange.answer(session)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())  # what is left in the buffer goes there
            if isinstance(error, BrokenPipeError):
                return PIPE_CLOSED
            raise LatticeError(f"the answer could not be written: {error.strerror}") from error
    if completion.failed is not None:
        raise completion.failed.error
    return INTERRUPTED if interrupts.count else 0


def _converse(worker: EngineWorker, loading: str, session: Session, manner: Manner, home: Home) -> None:
    """The REPL. Raises: what loading raises."""
    from lattice_cli.chat.exchange import Exchange, Interrupts
    from lattice_cli.chat.line import open_line
    from lattice_cli.chat.loop import Repl

    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(128 + signum))
    line = open_line(home.history)
    with line.held():
        card = _load(worker, loading, manner, line.pump)
        if not manner.quiet:
            say(f"{card.served_id}: {card.context_tokens:,} tokens of context. /help lists the commands, Ctrl-D leaves")
        interrupts = Interrupts()
        with interrupts.caught():
            exchange = Exchange(worker, card, manner, _view(), interrupts, line.pump)
            Repl(exchange, line, interrupts, session).run()


def _view() -> View:
    """Markdown in a terminal, else text as it comes."""
    from lattice_cli.chat.live import LiveView
    from lattice_cli.chat.plain import PlainView
    from lattice_cli.chat.screen import terminal_size
    from lattice_cli.chat.view import Painter
    from lattice_cli.console import is_live, lenient, stdout_console

    lenient(sys.stdout)
    if is_live(sys.stdout):
        return LiveView(sys.stdout, Painter(stdout_console()), lambda: terminal_size(sys.stdout))
    return PlainView(sys.stdout, sys.stderr)


def _load(worker: EngineWorker, loading: str, manner: Manner, pump: Callable[[], None] = lambda: None) -> ModelCard:
    """Wait for the model, saying so. Raises: what loading raised."""
    from lattice_cli.console import status
    from lattice_cli.engine.worker import State

    with nullcontext() if manner.quiet else status(loading):
        while worker.state is State.LOADING:
            with suppress(EngineUnavailable):
                worker.wait_ready(LOAD_TICK_S)
            pump()
        card = worker.wait_ready()
    for note in () if manner.quiet else card.notes:
        say(note)
    return card


def _stop(worker: EngineWorker, status: int) -> None:
    """End the engine's thread: one that used mlx and goes on while Python ends aborts the process.

    A load or a long step cannot be interrupted; then the process ends here, at once, with `status`.
    """
    try:
        if worker.stop(STOP_S):
            return
    except KeyboardInterrupt:
        status = INTERRUPTED
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(status)
