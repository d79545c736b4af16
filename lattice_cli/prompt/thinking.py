"""How much a model shall think: `reasoning_effort` in the words of OpenAI -> a switch and a budget.

    none      off: the template's switch, and where it has none a budget of 0, which ends a thought at once
    minimal   256 tokens        low    1,024        medium   4,096
    high      16,384            xhigh  32,768       max      no budget

A budget is the most that may be thought; models think less where they need less. Absent, the template's own default
holds, without a budget.

Thread: any
"""

from __future__ import annotations

from dataclasses import dataclass

EFFORTS: dict[str, int | None] = {
    "none": 0, "minimal": 256, "low": 1024, "medium": 4096, "high": 16384, "xhigh": 32768, "max": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Thinking:
    """`enabled` is what the template's switch is set to, None for its default; `budget_tokens` None is no budget."""

    enabled: bool | None = None
    budget_tokens: int | None = None


def thinking_of(effort: str | None, *, switch: bool, enabled: bool | None = None) -> Thinking:
    """What `effort` (a key of EFFORTS, or None) asks for; `switch` says whether the template has one.

    An explicit `enabled` (`enable_thinking` of a request) wins over an effort's switch, not over its budget. Thinking
    that is to be off, in a template without a switch, gets a budget of 0.
    """
    if effort is not None and enabled is None:
        enabled = effort != "none"
    budget_tokens = EFFORTS[effort] if effort not in (None, "none") else None
    if enabled is False:
        budget_tokens = None if switch else 0
    return Thinking(enabled, budget_tokens)
