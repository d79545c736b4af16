"""Which strings open and close a channel for a model.

Knows texts, no tokens: tokenizers merge a marker with its neighbours, so markers are matched on text.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice_cli.model.card import ModelCard


@dataclass(frozen=True, slots=True)
class Markers:
    """`think` is (open, close) round reasoning, None where the model has no such block."""

    think: tuple[str, str] | None = None


def markers_of(card: ModelCard) -> Markers:
    """The markers a model's replies may hold."""
    return Markers(think=card.think)
