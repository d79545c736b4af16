"""Tensors of a checkpoint that text does not need: the vision tower of a wrapper round a text model, and the layers
that draft tokens ahead (multi-token prediction).

Knows names; knows no files.

Thread: any
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_VISION = re.compile(
    r"(^|\.)(vision_tower|vision_model|visual|vision_embed_tokens|multi_modal_projector|mm_projector)\."
)
_DRAFT = re.compile(r"(^|\.)mtp\.")


def is_vision(name: str) -> bool:
    """Whether a tensor belongs to a vision tower."""
    return _VISION.search(name) is not None


def is_draft(name: str) -> bool:
    """Whether a tensor belongs to the layers that draft tokens ahead."""
    return _DRAFT.search(name) is not None


def unused_note(names: Iterable[str]) -> str | None:
    """A sentence about the tensors that are left out (user report 118); None where there are none."""
    vision = draft = 0
    for name in names:
        vision += is_vision(name)
        draft += not is_vision(name) and is_draft(name)
    parts = [
        f"{count} {kind} tensor{'s' * (count > 1)}" for count, kind in ((vision, "vision"), (draft, "draft")) if count
    ]
    return f"{' and '.join(parts)} left out: text needs none of them" if parts else None
