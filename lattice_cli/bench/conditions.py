"""`--fail-if "decode_tok_s < 0.9 * baseline.json"`: a metric of the records against a number or another record.

    METRIC  < <= > >=  [NUMBER *]  NUMBER | FILE [METRIC]

The same metric of FILE is meant unless one is named after it. Points are compared with those of the same name.

Thread: any
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice_cli.bench.record import figure
from lattice_cli.bench.saved import Saved, read_saved
from lattice_cli.errors import UsageError

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?"
_WHOLE = re.compile(rf"\s*(\w+)\s*(<=|>=|<|>)\s*(?:({_NUMBER})\s*\*\s*)?(\S.*?)\s*", re.IGNORECASE)
_FILE = re.compile(r"(.+?\.jsonl?)(?:[\s:]+(\w+))?")


@dataclass(frozen=True, slots=True)
class Condition:
    """`baseline` None: `factor` times 1 is the bound."""

    text: str
    metric: str
    sign: str
    factor: float
    baseline: Saved | None = None
    baseline_metric: str = ""

    def breaks(self, records: Sequence[Saved]) -> Iterator[str]:
        """A line for every point for which the condition holds, which is what must not be.

        Raises: UsageError when no record has the metric, or the baseline lacks a point's.
        """
        seen = False
        for saved in records:
            if self.baseline is not None and saved.kind != self.baseline.kind:
                continue
            for block, value in saved.metric(self.metric).items():
                seen = True
                bound, told = self._bound(block)
                if OPERATORS[self.sign](value, bound):
                    place = f" ({block})" if block else ""
                    yield f"{self.metric} of {saved.path.name}{place} is {figure(value)}, {self.sign} {told}"
        if not seen:
            raise UsageError(f"no record has `{self.metric}`", param="--fail-if")

    def _bound(self, block: str) -> tuple[float, str]:
        if self.baseline is None:
            return self.factor, figure(self.factor)
        found = self.baseline.metric(self.baseline_metric)
        if block not in found and len(found) == 1:
            block = next(iter(found))
        if block not in found:
            raise UsageError(f"`{self.baseline.path}` has no `{self.baseline_metric}` for `{block}`", param="--fail-if")
        value = self.factor * found[block]
        return value, f"{self.factor:g} * {figure(found[block])} of {self.baseline.path.name} = {figure(value)}"


def read_condition(text: str) -> Condition:
    """Raises: UsageError."""
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        raise UsageError(
            f"`{text}` is no condition", param="--fail-if", hint='such as "decode_tok_s < 0.9 * baseline.json"'
        )
    metric, sign, factor, rest = whole.groups()
    times = float(factor) if factor else 1.0
    if re.fullmatch(_NUMBER, rest, re.IGNORECASE):
        return Condition(text, metric, sign, times * float(rest))
    file = _FILE.fullmatch(rest)
    if file is None:
        raise UsageError(f"`{rest}` is neither a number nor a .json file", param="--fail-if")
    return Condition(text, metric, sign, times, read_saved(Path(file[1])), file[2] or metric)
