"""What a server was told: defaults for requests, limits and intervals. Frozen; built once by the command.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lattice_cli.job import SamplingChoice
from lattice_cli.policy import OPENAI, Policy


@dataclass(frozen=True, slots=True)
class Door:
    """Where a server listens and who may ask: at `host` and `port`, or at `unix_socket`; see access.py for the rest."""

    host: str = "127.0.0.1"
    port: int = 11435
    unix_socket: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    keys: tuple[str, ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`sampling`, `max_tokens`, `reasoning_budget` and `max_body_bytes` hold what flags or environment named, None
    where nobody did and the policy decides. `aliases` are further names of the model; with `strict_fields` a field
    that nobody knows is refused; with `tool_fallback` tools are offered in words of ours where a template has none.

    `commit_s`: how long a stream's status waits for the engine's first event before it is 200 all the
    same; `request_timeout_s`: how long a request may take from its arrival on (None: as long as it takes);
    `keepalive_s`: the longest silence on an open stream; `poll_s`: how often a waiting request looks whether its client
    is still there; `stall_s`: the longest step of an engine that is taken for well.
    """

    sampling: SamplingChoice = field(default_factory=SamplingChoice)
    max_tokens: int | None = None
    reasoning_budget: int | None = None
    policy: Policy = OPENAI
    max_body_bytes: int | None = None
    commit_s: float = 2.0
    request_timeout_s: float | None = None
    keepalive_s: float = 5.0
    poll_s: float = 0.05
    stall_s: float = 120.0
    log_prompts: bool = False
    aliases: tuple[str, ...] = ()
    strict_fields: bool = False
    tool_fallback: bool = False

    @property
    def body_limit(self) -> int:
        """The largest body that is read, in bytes."""
        return self.policy.max_body_bytes if self.max_body_bytes is None else self.max_body_bytes
