"""What dialects share: the sampling and length fields, and msgspec's complaints in our own words.

`null` means absent everywhere. A value under two names must be the same value.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from lattice_cli.errors import InvalidField, InvalidMessages
from lattice_cli.job import SamplingChoice

MAX_STOPS = 16
MAX_CHOICES = 16

Penalty = Annotated[float, Meta(ge=-2, le=2)]


class SharedFields(msgspec.Struct):
    """How a reply is drawn and when it ends."""

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_new_tokens: int | None = None
    n_predict: int | None = None
    num_predict: int | None = None
    reasoning_budget: Annotated[int, Meta(ge=0)] | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None


def sampling_of(fields: SharedFields) -> SamplingChoice:
    """The sampling that a request names. A seed is any integer of 64 bits, read modulo 2**64."""
    if fields.seed is not None and not -(2**63) <= fields.seed < 2**64:
        raise InvalidField("`seed` does not fit 64 bits", param="seed")
    return SamplingChoice(
        temperature=fields.temperature,
        top_k=fields.top_k,
        top_p=fields.top_p,
        min_p=fields.min_p,
        repetition_penalty=_agreed(fields, "repetition_penalty", "repeat_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=None if fields.seed is None else fields.seed % 2**64,
    )


def max_tokens_of(fields: SharedFields) -> int | None:
    """The most tokens a reply may have; None for as many as fit."""
    for name in ("n_predict", "num_predict"):  # -1 is "no limit" where these names come from
        if getattr(fields, name) == -1:
            setattr(fields, name, None)
    names = ("max_completion_tokens", "max_tokens", "max_new_tokens", "n_predict", "num_predict")
    for name in names:
        value = getattr(fields, name)
        if value is not None and value < 1:
            raise InvalidField(f"`{name}` must be at least 1", param=name, code="invalid_max_tokens")
    agreed: int | None = _agreed(fields, *names)
    return agreed


def stops_of(fields: SharedFields) -> tuple[str, ...]:
    """The texts that end a reply; `[]` is none."""
    stops = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    if len(stops) > MAX_STOPS:
        raise InvalidField(f"`stop` holds more than {MAX_STOPS} texts", param="stop", code="invalid_stop")
    for index, text in enumerate(stops):
        if not text:
            place = "stop" if isinstance(fields.stop, str) else f"stop[{index}]"
            raise InvalidField(f"`{place}` must not be empty", param=place, code="invalid_stop")
    return tuple(stops)


def _agreed(fields: SharedFields, *names: str) -> Any:
    """The value of whichever of these names are given. Raises: InvalidField when they differ."""
    given = {name: getattr(fields, name) for name in names if getattr(fields, name) is not None}
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise InvalidField(f"`{first}` and `{second}` are given with different values", param=first)
    return next(iter(given.values()), None)


# msgspec's words.

Fields = TypeVar("Fields", bound=msgspec.Struct)

PLACED = re.compile(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?\Z")
WORDS = {"int": "an integer", "float": "a number", "str": "a string", "bool": "true or false"}
WORDS |= {"array": "an array", "object": "an object"}
CODES = {
    "temperature": "invalid_temperature",
    "top_p": "invalid_top_p",
    "stop": "invalid_stop",
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_new_tokens"), "invalid_max_tokens"),
}


def read_fields(body: Mapping[str, Any], shape: type[Fields]) -> Fields:
    """Check an object against a struct. Raises: InvalidField or InvalidMessages with the place in `param`."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise _complaint(str(error)) from None


def _complaint(said: str) -> InvalidField | InvalidMessages:
    matched = PLACED.match(said)
    assert matched is not None
    text, place = matched[1], matched[2] or ""
    if missing := re.fullmatch(r"Object missing required field `(.*)`", text):
        place = f"{place}.{missing[1]}" if place else missing[1]
        text = "is missing"
    else:
        text = re.sub(r"`([a-z |]+)`", _word, text).removesuffix(", got null")
        text = text.replace("Expected", "must be", 1).replace(", got ", ", not ").replace("Number out", "is out")
    if place == "messages":
        return InvalidMessages(f"`{place}` {text}", param=place)
    return InvalidField(f"`{place}` {text}", param=place, code=CODES.get(re.split(r"[.\[]", place)[0]))


def _word(matched: re.Match[str]) -> str:
    kinds = [kind for kind in matched[1].split(" | ") if kind != "null"]
    return " or ".join(WORDS.get(kind, kind) for kind in kinds) or "null"
