"""Options of `lattice serve` about its door: where it listens, who may ask, what is written down, how it ends.

Thread: any
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.options import LogFormat, LogLevel, finite

HostOption = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is any of this machine.")]
PortOption = Annotated[
    int, typer.Option(envvar="LATTICE_SERVE_PORT", min=0, max=65535, help="The port; 0 picks a free one.")
]
UnixSocketOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Listen at this path, open to this user only, instead of an address and port."),
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Another name that requests may be sent to, as a proxy's; repeatable, `*` is any."
    ),
]
ApiKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY",
        envvar="LATTICE_API_KEY",
        help="Answer only who brings this key; repeatable. Others on the machine can read a command line, so better "
        "the variable, with spaces between keys.",
    ),
]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Let web pages of this origin read answers, such as http://localhost:3000; repeatable, `*` is all.",
    ),
]
LogLevelOption = Annotated[
    LogLevel | None, typer.Option(help="How much to say on stderr; info has a line for each request.")
]
LogFormatOption = Annotated[LogFormat | None, typer.Option(help="How to say it.")]
LogPromptsOption = Annotated[bool, typer.Option("--log-prompts", help="Log the text of prompts too (level info).")]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Log to this file instead of stderr, a line for each request; it may be rotated. SIGHUP is harmless then.",
    ),
]
DrainOption = Annotated[
    float,
    typer.Option(
        min=0, callback=finite, help="Seconds that running replies get to finish after SIGTERM; at most 3 after Ctrl-C."
    ),
]
OldDrainOption = Annotated[float | None, typer.Option("--drain-s", min=0, callback=finite, hidden=True)]
ExitOnBrokenOption = Annotated[
    bool, typer.Option("--exit-on-broken", help="End with a failure when the engine is broken.")
]
