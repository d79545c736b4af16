"""What a server was told: defaults for requests, limits and intervals. Frozen; built once by the command.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lattice_cli.job import SamplingChoice
from lattice_cli.policy import OPENAI, Policy

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`sampling` and `max_tokens` hold what flags or environment named, None where nobody did.

    `commit_s`: how long a stream's status waits for the engine's first event before it is 200 all the
    same; `keepalive_s`: the longest silence on an open stream; `poll_s`: how often a waiting request
    looks whether its client is still there.
    """

    sampling: SamplingChoice = field(default_factory=SamplingChoice)
    max_tokens: int | None = None
    policy: Policy = OPENAI
    max_body_bytes: int = 16 * MEBIBYTE
    commit_s: float = 2.0
    keepalive_s: float = 5.0
    poll_s: float = 0.05
    log_prompts: bool = False
