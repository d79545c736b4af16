"""How answers are made: what `/set` and the command's flags say, in the server's names, ranges and words.

Knows texts and values; knows no model. Every change makes a new value.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lattice_cli.errors import InvalidField, UsageError
from lattice_cli.job import Limits, Sampling, SamplingChoice, resolve_sampling
from lattice_cli.wording import read_fields

Penalty = Annotated[float, Meta(ge=-2, le=2)]
MOST_STOPS, MOST_STOP_IDS = 16, 64
NOTHING = ("-", "none", "default", "null")  # what takes a setting away


class Named(msgspec.Struct, omit_defaults=True):
    """Everything that can be set, as `lattice serve` names and bounds it; None: nothing was said."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    max_tokens: int | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    reasoning_budget: Annotated[int, Meta(ge=0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None


NAMES = Named.__struct_fields__
TEXTS = ("stop",)  # what may be typed without quotes
DRAWN = tuple(name for name in Named.__struct_fields__ if name in Sampling.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Manner:
    """What was chosen; whatever is left open comes from the model and from what is built in."""

    chosen: tuple[tuple[str, Any], ...] = field(default=())

    @property
    def fields(self) -> dict[str, Any]:
        """What was chosen, as a server takes it."""
        return dict(self.chosen)

    @property
    def max_tokens(self) -> int | None:
        """The most an answer may have; None: what fits."""
        return self.fields.get("max_tokens")

    @property
    def choice(self) -> SamplingChoice:
        """The sampling values among it."""
        said = {name: value for name, value in self.chosen if name in DRAWN}
        if said.get("seed") is not None:
            said["seed"] %= 2**64
        if "logit_bias" in said:
            said["logit_bias"] = tuple(sorted((int(name), value) for name, value in said["logit_bias"].items()))
        return SamplingChoice(**said)

    def sampling(self, advice: SamplingChoice, floor: Sampling) -> Sampling:
        """What is drawn with: what was chosen, else the model's advice, else what is built in."""
        return resolve_sampling(self.choice, advice, floor=floor)

    def limits(self, max_tokens: int) -> Limits:
        """What ends an answer that has room for `max_tokens`."""
        said, stop = self.fields, self.fields.get("stop") or ()
        return Limits(
            max_tokens,
            (stop,) if isinstance(stop, str) else tuple(stop),
            reasoning_tokens=said.get("reasoning_budget") or None,
            stop_ids=frozenset(said.get("stop_token_ids") or ()),
            ignore_end=bool(said.get("ignore_eos")),
            min_tokens=min(said.get("min_tokens") or 0, max_tokens),
            keep_stop=bool(said.get("include_stop_str_in_output")),
        )

    def having(self, **values: Any) -> Manner:
        """With these values; None takes one away. Raises: UsageError in the server's words."""
        said = {name: value for name, value in {**self.fields, **values}.items() if value is not None}
        try:
            _check(read_fields(said, Named))
        except InvalidField as error:
            raise UsageError(error.message, param=error.param, hint=_way_out(values)) from None
        if said.get("top_k") == -1:
            said["top_k"] = 0  # all tokens, as the server takes it
        return replace(self, chosen=tuple((name, said[name]) for name in NAMES if name in said))

    def typed(self, name: str, text: str) -> Manner:
        """One value as a person types it: a number, a word, or JSON. Raises: UsageError."""
        known = setting(name)
        if text.strip().lower() in NOTHING:
            return self.having(**{known: None})
        if not text.strip():
            raise UsageError(f"`{known}` needs a value", param=known, hint=f"`/set {known} -` takes it away")
        return self.having(**{known: _value(text.strip(), known)})

    def rows(self, advice: SamplingChoice, floor: Sampling | None) -> Sequence[tuple[str, str]]:
        """Every setting with its value, and where the value comes from; without a `floor` a server decides."""
        drawn = self.sampling(advice, floor) if floor else None
        return [(name, _row(name, self.fields, drawn, advice)) for name in NAMES]


def setting(name: str) -> str:
    """A setting's name, however it was typed. Raises: UsageError where there is none."""
    known = name.strip().lower().replace("-", "_")
    if known not in NAMES:
        close = [found for found in NAMES if found.startswith(known)] or get_close_matches(known, NAMES, n=1)
        guess = f"did you mean {' or '.join(f'`{one}`' for one in close)}? " if known and close else ""
        raise UsageError(f"there is no setting `{name}`", param=name, hint=f"{guess}there are {', '.join(NAMES)}")
    return known


def _row(name: str, said: dict[str, Any], drawn: Sampling | None, advice: SamplingChoice) -> str:
    if name in said:
        return json.dumps(said[name], ensure_ascii=False)
    if drawn is None:
        return "the server's own"
    if name in DRAWN and name not in ("seed", "logit_bias"):
        whose = "the model's" if getattr(advice, name) is not None else "built in"
        return f"{getattr(drawn, name):g} ({whose})"
    absent = {"seed": "random", "max_tokens": "what fits", "include_stop_str_in_output": "false", "ignore_eos": "false"}
    return f"{absent.get(name, 'none')} (built in)"


def _check(said: Named) -> None:
    """What types do not say. Raises: InvalidField."""
    if said.seed is not None and not -(2**63) <= said.seed < 2**64:
        raise InvalidField("`seed` does not fit 64 bits", param="seed")
    if said.max_tokens is not None and said.max_tokens < 1:
        raise InvalidField("`max_tokens` must be at least 1", param="max_tokens")
    if said.max_tokens is not None and (said.min_tokens or 0) > said.max_tokens:
        raise InvalidField(f"`min_tokens` must be at most `max_tokens` ({said.max_tokens})", param="min_tokens")
    stops = [said.stop] if isinstance(said.stop, str) else said.stop or []
    if len(stops) > MOST_STOPS:
        raise InvalidField(f"`stop` holds more than {MOST_STOPS} texts", param="stop")
    if not all(stops):
        raise InvalidField("`stop` must not be empty", param="stop")
    if len(said.stop_token_ids or ()) > MOST_STOP_IDS:
        raise InvalidField(f"`stop_token_ids` holds more than {MOST_STOP_IDS} ids", param="stop_token_ids")
    for name in said.logit_bias or ():
        if not (name.isascii() and name.isdecimal() and len(name) < 10):
            raise InvalidField(f"`logit_bias` holds {json.dumps(name[:40])}, which is no token id", param="logit_bias")


def _value(text: str, name: str) -> Any:
    try:
        value = json.loads(text, parse_constant=lambda word: word)
    except (ValueError, RecursionError):
        return text
    if name in TEXTS and not isinstance(value, str | list):
        return text
    return int(value) if isinstance(value, float) and value.is_integer() and name in _WHOLE else value


_WHOLE = ("top_k", "seed", "max_tokens", "min_tokens", "reasoning_budget")


def _way_out(values: dict[str, Any]) -> str | None:
    return f"`/set {next(iter(values))} -` leaves it to the model" if len(values) == 1 else None
