"""`lattice chat`: options in, a conversation with a model of this machine or of a server, an exit status out.

Thread: any (the main thread, for signals)
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.console import is_terminal
from lattice_cli.errors import UsageError
from lattice_cli.options import (
    KernelsOption,
    LogLevel,
    ModelOption,
    ThreadsOption,
    above_zero,
    choose_logging,
    finite,
)


class Thoughts(StrEnum):
    show = "show"
    hide = "hide"
    off = "off"


def complete_session(incomplete: str) -> list[str]:
    """The names of saved sessions, for a shell."""
    from lattice_cli.chat.store_file import session_names
    from lattice_cli.settings import read_home

    try:
        return [name for name in session_names(read_home().sessions) if name.startswith(incomplete)]
    except UsageError:
        return []


def chat_command(
    typed: typer.Context,
    model: ModelOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="Answer this once, on stdout; a piped text goes below it as a document.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    continues: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the latest session.")] = False,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=complete_session, help="Go on with this session, or begin one of that name."
        ),
    ] = None,
    no_save: Annotated[bool, typer.Option("--no-save", help="Keep nothing of this chat on the disk.")] = False,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Talk to this OpenAI-compatible server, such as http://127.0.0.1:8080/v1."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The server's key [default: LATTICE_API_KEY, else OPENAI_API_KEY]."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object: answer, reasoning, finish_reason, usage, timing, model.")
    ] = False,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A JSON schema that the answer must follow.")
    ] = None,
    think: Annotated[
        Thoughts, typer.Option(help="Show the model's thoughts, hide them, or have none.")
    ] = Thoughts.show,
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
    no_color: Annotated[
        bool, typer.Option("--no-color", help="No colours; NO_COLOR in the environment does it too.")
    ] = False,
    log_level: Annotated[LogLevel | None, typer.Option(help="How much to say on stderr.")] = None,
) -> None:
    """Talk to a model in the terminal. With --prompt or a piped text: one answer on stdout, nothing else.

    The exit status is 0 after an answer; 1 where it failed, or does not follow the schema; 2 for options that cannot be
    used; 3 where a model or a server cannot be had; 5 where the text is too long for the context window; 130 after
    Ctrl-C; 141 where nobody reads the answer.
    """
    from lattice_cli.chat.manner import Manner
    from lattice_cli.chat.once import read_schema
    from lattice_cli.chat.piped import one_prompt, read_piped
    from lattice_cli.chat.running import Wish, run_chat
    from lattice_cli.settings import read_home

    choose_logging(typed, log_level, None)
    if no_color:
        os.environ["NO_COLOR"] = "1"  # what rich, prompt_toolkit and the editor of /edit read
    if url is not None and (kernels is not None or threads is not None):
        name = "--kernels" if kernels is not None else "--threads"
        raise UsageError(f"`{name}` is for a model of this machine, and `--url` names a server", param=name)
    bound = read_schema(str(schema)) if schema is not None else None
    text = one_prompt(prompt, read_piped(sys.stdin, beside_prompt=prompt is not None))
    if text is None and not is_terminal(sys.stdin):
        raise UsageError("stdin is closed, so there is nothing to answer", hint='`lattice chat --prompt "..."`')
    wish = Wish(
        model,
        url,
        api_key,
        context,
        system,
        text,
        continues,
        session,
        saves=not no_save,
        schema=bound,
        as_json=as_json,
        quiet=quiet,
        thoughts=think.value,
    )
    manner = Manner().having(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
    )
    raise typer.Exit(run_chat(wish, manner, read_home(kernels=kernels, threads=threads)))
