"""`lattice serve`: options -> settings -> a supervised server.

Thread: any
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from lattice_cli.options import (
    CacheBytesOption,
    CacheDirOption,
    KernelsOption,
    LogLevel,
    MemoryLimitOption,
    ModelOption,
    NoPrefixCacheOption,
    ThreadsOption,
    choose_logging,
    is_typed,
)
from lattice_cli.serve.options import (
    AllowHostOption,
    ApiKeyOption,
    CorsOriginOption,
    DrainOption,
    ExitOnBrokenOption,
    HostOption,
    LogFileOption,
    LogFormatOption,
    LogLevelOption,
    LogPromptsOption,
    OldDrainOption,
    PortOption,
    UnixSocketOption,
)
from lattice_cli.serve.request_options import (
    AliasOption,
    ContextOption,
    MaxBodyOption,
    MaxPendingOption,
    MaxRowsOption,
    MaxTokensOption,
    PolicyName,
    PolicyOption,
    PrefillChunkOption,
    ReasoningBudgetOption,
    RepetitionPenaltyOption,
    RequestTimeoutOption,
    StrictFieldsOption,
    TemperatureOption,
    TokenizerOption,
    ToolFallbackOption,
    TopKOption,
    TopPOption,
)

if TYPE_CHECKING:
    from lattice_cli.serve.settings import Door
    from lattice_cli.settings import EngineSettings


def serve_command(
    typed: typer.Context,
    model: ModelOption = None,
    tokenizer_dir: TokenizerOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 11435,
    unix_socket: UnixSocketOption = None,
    allow_host: AllowHostOption = None,
    api_key: ApiKeyOption = None,
    cors_origin: CorsOriginOption = None,
    policy: PolicyOption = PolicyName.openai,
    alias: AliasOption = None,
    strict_fields: StrictFieldsOption = False,
    tool_fallback: ToolFallbackOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    reasoning_budget: ReasoningBudgetOption = None,
    context: ContextOption = None,
    max_rows: MaxRowsOption = 8,
    max_pending: MaxPendingOption = 32,
    prefill_chunk: PrefillChunkOption = None,
    memory_limit: MemoryLimitOption = None,
    cache_bytes: CacheBytesOption = None,
    no_prefix_cache: NoPrefixCacheOption = False,
    cache_dir: CacheDirOption = None,
    kernels: KernelsOption = None,
    threads: ThreadsOption = None,
    max_body: MaxBodyOption = None,
    request_timeout: RequestTimeoutOption = None,
    drain_seconds: DrainOption = 30.0,
    drain_s: OldDrainOption = None,
    exit_on_broken: ExitOnBrokenOption = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    log_file: LogFileOption = None,
    log_prompts: LogPromptsOption = False,
) -> None:
    """Answer OpenAI clients over HTTP: chats, completions, models, tokens, health, metrics."""
    from lattice_cli.job import SamplingChoice
    from lattice_cli.policy import MEBIBYTE, POLICIES
    from lattice_cli.serve.assembly import assemble
    from lattice_cli.serve.settings import Door, ServeSettings
    from lattice_cli.serve.supervisor import Ending
    from lattice_cli.settings import EngineSettings, read_home

    choose_logging(typed, log_level or (LogLevel.info if log_prompts else None), log_format, log_file)
    engine = EngineSettings(
        max_rows=max_rows,
        max_pending=max_pending,
        prefill_chunk=prefill_chunk,
        context_tokens=context,
        cache_bytes=0 if no_prefix_cache else cache_bytes,
        cache_dir=cache_dir,
        memory_bytes=memory_limit,
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
    _check_cache(typed, engine)
    home = read_home(kernels=kernels, threads=threads)
    ending = Ending(drain_seconds if drain_s is None else drain_s, exit_on_broken, hangs_up=log_file is None)
    assemble(model, tokenizer_dir, door, home, engine, settings, ending).run()


def _check_door(typed: typer.Context, door: Door) -> None:
    """Raises: UsageError for an address beside a path, for no address, and for a variable that holds no key."""
    from lattice_cli.errors import UsageError
    from lattice_cli.settings import check_serve_keys

    if not door.keys:
        check_serve_keys()
    if door.unix_socket is None:
        if not door.host.strip():
            raise UsageError("`--host` is empty", param="--host", hint="leave it out for this machine only")
        return
    for name in ("host", "port", "allow_host"):
        if is_typed(typed, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"`{option}` does not go with `--unix-socket`", param=option, hint="leave one of them out")


def _check_cache(typed: typer.Context, engine: EngineSettings) -> None:
    """Raises: UsageError for a cache that is described and switched off."""
    from lattice_cli.errors import UsageError

    if engine.cache_bytes != 0:
        return
    off = "--no-prefix-cache" if is_typed(typed, "no_prefix_cache") else "--cache-bytes 0"
    described = ("cache_dir", "cache_bytes") if off == "--no-prefix-cache" else ("cache_dir",)
    for name in described:
        if is_typed(typed, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"`{option}` does not go with `{off}`", param=option, hint="leave one of them out")
