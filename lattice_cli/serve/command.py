"""`lattice serve`: options -> settings -> a supervised server.

Thread: any
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lattice_cli.options import (
    CacheBytesOption,
    CacheDirOption,
    KernelsOption,
    LogFormat,
    LogLevel,
    MemoryLimitOption,
    ModelOption,
    NoPrefixCacheOption,
    ThreadsOption,
    above_zero,
    choose_logging,
    finite,
)
from lattice_cli.serve.options import (
    AllowHostOption,
    ApiKeyOption,
    CorsOriginOption,
    DrainOption,
    HostOption,
    LogFileOption,
    OldDrainOption,
    PortOption,
    RequestTimeoutOption,
    UnixSocketOption,
)

if TYPE_CHECKING:
    from lattice_cli.serve.settings import Door


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
    host: HostOption = "127.0.0.1",
    port: PortOption = 11435,
    unix_socket: UnixSocketOption = None,
    allow_host: AllowHostOption = None,
    api_key: ApiKeyOption = None,
    cors_origin: CorsOriginOption = None,
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
        int | None, typer.Option(min=1, help="The most prompt tokens read at once [default: by the load, at most 512].")
    ] = None,
    memory_limit: MemoryLimitOption = None,
    cache_bytes: CacheBytesOption = None,
    no_prefix_cache: NoPrefixCacheOption = False,
    cache_dir: CacheDirOption = None,
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
    request_timeout: RequestTimeoutOption = None,
    drain_seconds: DrainOption = 30.0,
    drain_s: OldDrainOption = None,
    exit_on_broken: Annotated[
        bool, typer.Option("--exit-on-broken", help="End with a failure when the engine is broken.")
    ] = False,
    log_level: Annotated[
        LogLevel | None, typer.Option(help="How much to say on stderr; info has a line for each request.")
    ] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How to say it.")] = None,
    log_file: LogFileOption = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log the text of prompts too (level info).")
    ] = False,
) -> None:
    """Answer OpenAI clients over HTTP: chats, completions, models, tokens, health, metrics."""
    from lattice_cli.job import SamplingChoice
    from lattice_cli.policy import MEBIBYTE, POLICIES
    from lattice_cli.serve.assembly import assemble
    from lattice_cli.serve.settings import Door, ServeSettings
    from lattice_cli.serve.supervisor import Ending
    from lattice_cli.settings import EngineSettings, read_home

    choose_logging(typed, log_level or (LogLevel.info if log_prompts else None), log_format, log_file)
    kept = 0 if no_prefix_cache else cache_bytes
    engine = EngineSettings(
        max_rows, max_pending, prefill_chunk, context, cache_bytes=kept, cache_dir=cache_dir, memory_bytes=memory_limit
    )
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
        request_timeout_s=request_timeout,
    )
    door = Door(host, port, unix_socket, tuple(allow_host or ()), tuple(api_key or ()), tuple(cors_origin or ()))
    _check_door(typed, door)
    home = read_home(kernels=kernels, threads=threads)
    ending = Ending(drain_seconds if drain_s is None else drain_s, exit_on_broken, hangs_up=log_file is None)
    assemble(model, tokenizer_dir, door, home, engine, settings, ending).run()


def _check_door(typed: typer.Context, door: Door) -> None:
    """Raises: UsageError for an address beside a path."""
    from lattice_cli.errors import UsageError

    if door.unix_socket is None:
        return
    for name in ("host", "port", "allow_host"):
        source = typed.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"`{option}` does not go with `--unix-socket`", param=option, hint="leave one of them out")
