"""Which system's manners a server follows. One value decides; no handler asks for a version.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Policy:
    """`model_defaults`: the model's generation_config fills what neither request nor flag named.
    `repetition_penalty`: the built-in value when nobody named one.
    """

    name: str
    model_defaults: bool
    repetition_penalty: float


OPENAI = Policy("openai", model_defaults=True, repetition_penalty=1.0)
