"""Options of `lattice serve` about requests: how they are read, what holds where they name nothing, how many at once.

Thread: any
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lattice_cli.options import above_zero, finite, not_empty


class PolicyName(StrEnum):
    openai = "openai"
    lattice_061 = "lattice-0.6.1"
    lattice_050 = "lattice-0.5.0"


class ToolFallback(StrEnum):
    hermes = "hermes"


TokenizerOption = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="Take the tokenizer from this folder.")
]
PolicyOption = Annotated[
    PolicyName, typer.Option(help="Whose manners to follow: OpenAI's, or a version of lattice_serve.")
]
AliasOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", callback=not_empty, help="Another name that requests may give; repeatable."),
]
StrictFieldsOption = Annotated[
    bool, typer.Option("--strict-fields", help="Refuse requests with fields that nobody knows (policy openai).")
]
ToolFallbackOption = Annotated[
    ToolFallback | None,
    typer.Option(help="Offer tools in these words to a model whose template has none [default: refuse them]."),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="The most tokens of a reply whose request names no limit [default: what fits; 512 for lattice].",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(min=0, max=2, callback=finite, help="For requests that name none, as the next three."),
]
TopKOption = Annotated[int | None, typer.Option(min=0, help="0 keeps all tokens.")]
TopPOption = Annotated[float | None, typer.Option(max=1, callback=above_zero, help="1 keeps all tokens.")]
RepetitionPenaltyOption = Annotated[float | None, typer.Option(callback=above_zero, help="1 is none.")]
ReasoningBudgetOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="Tokens after which thoughts are closed [default: none, as 0 is]."),
]
ContextOption = Annotated[
    int | None, typer.Option(min=2, metavar="N", help="The context window in tokens [default: the model's].")
]
MaxRowsOption = Annotated[int, typer.Option(min=1, help="Replies made at once.")]
MaxPendingOption = Annotated[int, typer.Option(min=0, help="Requests that may wait; more get 429 (lattice: 503).")]
PrefillChunkOption = Annotated[
    int | None, typer.Option(min=1, help="The most prompt tokens read at once [default: by the load, at most 512].")
]
MaxBodyOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        metavar="MIB",
        help="The largest request body [default: 16; lattice-0.6.1: 1, 0.5.0: 2].",
    ),
]
RequestTimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        callback=above_zero,
        help="How long a request may take: then 504, or the reply as far as it came [default: as long as it takes].",
    ),
]
