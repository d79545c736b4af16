"""`lattice serve`: options -> settings -> a supervised server.

Thread: any
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lattice_cli.options import (
    KernelsOption,
    LogFormat,
    LogLevel,
    ModelOption,
    ThreadsOption,
    above_zero,
    choose_logging,
    finite,
)

if TYPE_CHECKING:
    from lattice_cli.serve.settings import ServeSettings
    from lattice_cli.serve.supervisor import Ending, Supervisor
    from lattice_cli.settings import EngineSettings, Home


class PolicyName(StrEnum):
    openai = "openai"
    lattice_061 = "lattice-0.6.1"
    lattice_050 = "lattice-0.5.0"


class ToolFallback(StrEnum):
    hermes = "hermes"


def serve_command(
    typed: typer.Context,
    model: ModelOption = None,
    tokenizer_dir: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="Take the tokenizer from this folder.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="LATTICE_SERVE_PORT", min=0, max=65535, help="The port; 0 picks a free one.")
    ] = 11435,
    policy: Annotated[
        PolicyName, typer.Option(help="Whose manners to follow: OpenAI's, or a version of lattice_serve.")
    ] = PolicyName.openai,
    alias: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Another name that requests may give; repeatable.")
    ] = None,
    strict_fields: Annotated[
        bool, typer.Option("--strict-fields", help="Refuse requests with fields that nobody knows (policy openai).")
    ] = False,
    tool_fallback: Annotated[
        ToolFallback | None,
        typer.Option(help="Offer tools in these words to a model whose template has none [default: refuse them]."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most tokens of a reply whose request names no limit [default: what fits; 512 for lattice].",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, max=2, callback=finite, help="For requests that name none, as the next three."),
    ] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="0 keeps all tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(max=1, callback=above_zero, help="1 keeps all tokens.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(callback=above_zero, help="1 is none.")] = None,
    reasoning_budget: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Tokens after which thoughts are closed [default: none, as 0 is]."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="The context window in tokens [default: the model's].")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Replies made at once.")] = 8,
    max_pending: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429 (lattice: 503).")] = 32,
    prefill_chunk: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens read between two steps [default: 512; 128 on a slow CPU].")
    ] = None,
    kernels: KernelsOption = None,
    threads: ThreadsOption = None,
    max_body: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="MIB",
            help="The largest request body [default: 16; lattice-0.6.1: 1, 0.5.0: 2].",
        ),
    ] = None,
    drain_s: Annotated[
        float, typer.Option(min=0, callback=finite, help="Seconds that running replies get to finish at the end.")
    ] = 5.0,
    exit_on_broken: Annotated[
        bool, typer.Option("--exit-on-broken", help="End with a failure when the engine is broken.")
    ] = False,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="How much to say on stderr; info has a line for each request.")
    ] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How to say it.")] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log the text of prompts too (level info).")
    ] = False,
) -> None:
    """Answer OpenAI clients over HTTP: chats, completions, models, tokens, health."""
    from lattice_cli.job import SamplingChoice
    from lattice_cli.policy import MEBIBYTE, POLICIES
    from lattice_cli.serve.settings import ServeSettings
    from lattice_cli.serve.supervisor import Ending
    from lattice_cli.settings import EngineSettings, read_home

    choose_logging(typed, log_level or (LogLevel.info if log_prompts else None), log_format)
    engine = EngineSettings(max_rows, max_pending, prefill_chunk, context)
    settings = ServeSettings(
        sampling=SamplingChoice(temperature, top_k, top_p, repetition_penalty=repetition_penalty),
        max_tokens=max_tokens,
        reasoning_budget=reasoning_budget or None,
        policy=POLICIES[policy.value],
        max_body_bytes=None if max_body is None else max_body * MEBIBYTE,
        log_prompts=log_prompts,
        aliases=tuple(alias or ()),
        strict_fields=strict_fields,
        tool_fallback=tool_fallback is not None,
    )
    home, ending = read_home(kernels=kernels, threads=threads), Ending(drain_s, exit_on_broken)
    _assemble(model, tokenizer_dir, host, port, home, engine, settings, ending).run()


def _assemble(
    model: str | None,
    tokenizer_dir: Path | None,
    host: str,
    port: int,
    home: Home,
    engine: EngineSettings,
    settings: ServeSettings,
    ending: Ending,
) -> Supervisor:
    """The socket first, so that a taken port is told before anything is loaded."""
    from lattice_cli.engine.open import OpenEngine, open_engine
    from lattice_cli.engine.worker import EngineWorker
    from lattice_cli.errors import UsageError
    from lattice_cli.model.locate import find_model
    from lattice_cli.serve.app import create_app
    from lattice_cli.serve.limits import check_budget
    from lattice_cli.serve.lines import AppLines
    from lattice_cli.serve.server import HttpServer, listen_on
    from lattice_cli.serve.supervisor import Supervisor
    from lattice_cli.serve.wire import wire_named

    listener = listen_on(host, port)
    lines = AppLines.on_stdout()

    def open_model() -> OpenEngine:
        """On the worker thread: a first use may download for minutes, while /health says `loading`."""
        opened = open_engine(find_model(model, home), home, engine, tokenizer_dir=tokenizer_dir)
        try:
            check_budget(settings, opened.card)
        except UsageError:
            opened.close()
            raise
        return opened

    worker = EngineWorker(open_model, engine)
    answers = engine.max_rows + engine.max_pending
    app = create_app(worker, settings, lines)
    wire = wire_named(settings.policy.wire)
    server = HttpServer(app, listener, lines, answers=answers, max_body_bytes=settings.body_limit, wire=wire)
    return Supervisor(worker, server, lines, host=host, ending=ending)
