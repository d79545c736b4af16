"""The request fields of both lattice_serve versions, and what their values mean to our engine.

Thread: any
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lattice_cli.job import SamplingChoice
from lattice_cli.serve.wire.serde.shapes import Field, Shape, boolean, float32, option, record, several, text, whole

MOST_FLOAT32 = 3.4028235677973366e38  # from here on a float of 32 bits is infinite


def request(message: Shape, more: Mapping[str, Field] | None = None) -> Shape:
    """A chat request, its fields in the order in which an array would give them."""
    return record(
        "ChatReq",
        {
            "model": option(text),
            "messages": Field(several(message), list),
            "temperature": option(float32),
            "top_p": option(float32),
            "top_k": option(whole("usize")),
            "max_tokens": option(whole("usize")),
            "seed": option(whole("u64")),
            "stream": option(boolean),
            "repetition_penalty": option(float32),
            "reasoning_budget": option(whole("usize")),
            **(more or {}),
        },
    )


def sampling_of(said: Mapping[str, Any]) -> SamplingChoice:
    """Nothing was range-checked there: what cannot be drawn from is greedy, and a penalty that is none is off."""
    return SamplingChoice(
        temperature=_usable(said["temperature"], 0.0),
        top_k=said["top_k"],
        top_p=None if said["top_p"] is None else min(1.0, max(0.0, said["top_p"])),
        repetition_penalty=_usable(said["repetition_penalty"], 1.0),
        seed=said["seed"],
    )


def _usable(value: float | None, otherwise: float) -> float | None:
    return value if value is None or 0 < value < MOST_FLOAT32 else otherwise
