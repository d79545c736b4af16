"""What dialects share: the sampling and length fields.

`null` means absent everywhere. A value under two names must be the same value.

Thread: any
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lattice_cli.errors import InvalidField
from lattice_cli.job import SamplingChoice

SERVED_NAMES = ("", "default", "lattice")  # the last one is in lattice_serve's own examples
MAX_CHOICES = 16
MAX_BIASES = 4096

TOKEN_ID = re.compile(r"[0-9]{1,9}")
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SharedFields(msgspec.Struct):
    """How a reply is drawn and when it ends."""

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_new_tokens: int | None = None
    n_predict: int | None = None
    num_predict: int | None = None
    reasoning_budget: Annotated[int, Meta(ge=0)] | None = None
    thinking_token_budget: Annotated[int, Meta(ge=0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Annotated[int, Meta(ge=0)]] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


def sampling_of(fields: SharedFields) -> SamplingChoice:
    """The sampling that a request names. A seed is any integer of 64 bits, read modulo 2**64."""
    if fields.seed is not None and not -(2**63) <= fields.seed < 2**64:
        raise InvalidField("`seed` does not fit 64 bits", param="seed")
    return SamplingChoice(
        temperature=fields.temperature,
        top_k=0 if fields.top_k == -1 else fields.top_k,  # vLLM and llama-server say -1 for all tokens
        top_p=fields.top_p,
        min_p=fields.min_p,
        repetition_penalty=agreed(fields, "repetition_penalty", "repeat_penalty"),
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=None if fields.seed is None else fields.seed % 2**64,
        logit_bias=_biases(fields.logit_bias) if fields.logit_bias else None,
    )


def _biases(said: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Ids in order. Whether the vocabulary has them is for whoever knows it (serve/jobs.py)."""
    if len(said) > MAX_BIASES:
        raise InvalidField(f"`logit_bias` names more than {MAX_BIASES} tokens", param="logit_bias")
    for name in said:
        if not TOKEN_ID.fullmatch(name):
            raise InvalidField(f"`logit_bias` holds {json.dumps(name[:40])}, which is no token id", param="logit_bias")
    return tuple(sorted((int(name), value) for name, value in said.items()))


def model_of(name: str | None) -> str | None:
    """The model asked for; None is the served one."""
    return None if name in SERVED_NAMES else name


def choices_of(fields: SharedFields) -> int:
    """How many replies one prompt gets."""
    return fields.n or 1


def usage_wanted(fields: SharedFields) -> bool:
    """Whether a stream ends with its usage. Raises: InvalidField for options of a stream that is none."""
    if fields.stream_options is not None and not fields.stream:
        raise InvalidField("`stream_options` needs `stream` to be true", param="stream_options")
    return bool(fields.stream_options and fields.stream_options.include_usage)


def max_tokens_of(fields: SharedFields, least: int = 1) -> int | None:
    """The most tokens a reply may have; None for as many as fit."""
    for name in ("n_predict", "num_predict"):  # -1 is "no limit" where these names come from
        if getattr(fields, name) == -1:
            setattr(fields, name, None)
    names = ("max_completion_tokens", "max_tokens", "max_new_tokens", "n_predict", "num_predict")
    for name in names:
        value = getattr(fields, name)
        if value is not None and value < least:
            raise InvalidField(f"`{name}` must be at least {least}", param=name, code="invalid_max_tokens")
    most: int | None = agreed(fields, *names)
    return most


def agreed(fields: SharedFields, *names: str) -> Any:
    """The value of whichever of these names are given. Raises: InvalidField when they differ."""
    given = {name: getattr(fields, name) for name in names if getattr(fields, name) is not None}
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise InvalidField(f"`{first}` and `{second}` are given with different values", param=first)
    return next(iter(given.values()), None)
