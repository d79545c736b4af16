"""How much of the prompts is read between two steps, so that whoever comes and whoever is heard keep their pace.

A large chunk costs everybody else time; a small one, where it is a pass of its own, costs its prompt the reading of the
weights besides its tokens. The rule, in steps as they are measured (costs.py):

- while replies are being made, each step of theirs earns `BUSY_STEPS` for prompts, so tokens come 2.3 times as far
  apart where a long prompt is read beside them; what is not used is kept up to `SAVED_STEPS`, and a short prompt is
  read at once; where several rows wait for their first token it is `CROWD_WEIGHT` times more for each beyond the first,
  by the rows that have it: small chunks would cost a crowd more than they save;
- while none is, a chunk takes at most `CROWD_STEPS` where of late one request met another, for a newcomer waits for
  half of it on average, and `LONE_STEPS` where they came one by one;
- where nobody could come (every slot is taken, as by the only row of a chat) it is as long as is efficient.

Whatever the clock says, a chunk has some tokens, so that prompts are always read on. On a GPU, where launching costs
what it costs, these are many, and chunks beside replies are rare instead of small. Knows seconds and counts; knows no
tensors.

Thread: worker
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice_cli.engine.costs import Costs

BUSY_STEPS = 1.3
SAVED_STEPS = 8.0
CROWD_WEIGHT = 12.0  # see docs/log.md, "A pace for one newcomer"
CROWD_STEPS, CROWD_S = 4.0, 60.0
LONE_STEPS = 16.0
FEWEST_TOKENS = 3
STEPS_AT_ONCE = 8  # are measured
MOST_OWED_STEPS = 30.0
ROW_TOKENS = 2048  # of a chunk: mlx's attention on a GPU has a number in memory for each pair of them and the context
FIRST_TOKENS = 64  # before anything was measured


class Pace:
    """Chooses chunks of at most `most_tokens`; with `fixed` of exactly so many while no reply is being made."""

    def __init__(self, most_tokens: int, *, fixed: bool = False, fewest_tokens: int = FEWEST_TOKENS) -> None:
        self.most_tokens = most_tokens
        self._fixed = fixed
        self._fewest_tokens = min(fewest_tokens, most_tokens)
        # Where a short chunk costs as much as a long one, chunks are rare instead: see `rests`.
        self._most_owed = 0.0 if fewest_tokens == FEWEST_TOKENS else MOST_OWED_STEPS
        self._costs = Costs()
        self._saved = SAVED_STEPS  # steps that prompts may still take beside replies
        self._weight = 1.0  # how many times more prompts have of a step now
        self._crowd_until_s = float("-inf")

    @property
    def row_tokens(self) -> int | None:
        """How much of a chunk one row may have; None: all of it."""
        return None if self._fixed else ROW_TOKENS

    def met(self, now_s: float) -> None:
        """A request came while another was there."""
        self._crowd_until_s = now_s + CROWD_S

    def chunk(self, decoding: int, *, full: bool, now_s: float = 0.0, waiting: int = 1) -> int:
        """Tokens to read now. `decoding` rows wait for their next token meanwhile, and `waiting` ones for their first;
        `full`: nobody can join them. 0 where a step should be seen alone (costs.py).
        """
        self._weight = max(1.0, CROWD_WEIGHT * (waiting - 1) / decoding) if decoding else 1.0
        if not decoding and (full or self._fixed):
            return self.most_tokens
        if self._costs.token_s is None:
            return min(max(FIRST_TOKENS, self._fewest_tokens), self.most_tokens)
        idle = CROWD_STEPS if now_s < self._crowd_until_s else LONE_STEPS
        if decoding and not self._most_owed and self._costs.blind(decoding):
            return 0
        step_s = self._costs.step_s(decoding or 1)
        limit_s = step_s * (self._saved * self._weight if decoding else idle)
        tokens = int(limit_s / max(self._costs.token_s, 1e-9))
        return max(1, min(self.most_tokens, max(self._fewest_tokens, tokens)))

    @property
    def rests(self) -> bool:
        """Prompts have had more than replies have earned for them: the next step follows at once."""
        return self._most_owed > 0 and self._saved <= 0

    def took(self, seconds: float, decoding: int, tokens: int, steps: int) -> None:
        """So many steps with `decoding` rows, and a chunk of `tokens`, took so long together; 0 is none of either."""
        read_s = self._costs.learn(seconds, decoding, tokens, steps)
        if steps:
            self._saved -= read_s / self._costs.step_s(decoding) / self._weight
        self.earned(steps)

    def earned(self, steps: int) -> None:
        """So many steps of replies were made."""
        self._saved = min(SAVED_STEPS, max(-self._most_owed, self._saved) + BUSY_STEPS * steps)

    def stepped(self, seconds: float, decoding: int, steps: int) -> None:
        """So many steps and nothing else took so long; they are counted elsewhere."""
        self._costs.learn(seconds, decoding, 0, steps)


@dataclass(frozen=True, slots=True)
class Cycle:
    """A step of `decoding` rows, then a chunk of `tokens`; 0 is none of either."""

    began_s: float
    decoding: int
    tokens: int


class Rhythm:
    """Tells a pace what cycles took, from when they begin: a step's tokens are handed out while the next one runs, so
    none knows its own end.

    Where the thread is kept waiting, for a core or by another thread, one cycle seems long and the next, whose step ran
    meanwhile, like nothing. So several steps are measured at once; the first after a chunk, which waited for all that
    was before it, with the cycle that hands out its tokens.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._last: Cycle | None = None
        self._before: Cycle | None = None  # the last one
        self._since_s = 0.0  # since then nothing but steps, of equally many rows
        self._steps = 0  # how many of these were waited for
        self._first = False  # and of these only the first, after a chunk

    def begin(self, now_s: float) -> None:
        """A cycle begins, and the last one has ended."""
        last, before = self._last, self._before
        if last is None:
            return
        waited = before is not None and before.tokens == 0 and before.decoding > 0  # for the step before
        if last.tokens:
            # A chunk waits for all steps before it, also for one that was only begun in the cycle before.
            steps = (last.decoding > 0) + waited
            self._pace.took(now_s - last.began_s, last.decoding or 1, last.tokens, steps)
        elif not waited or before is None:
            self._since_s, self._steps, self._first = last.began_s, 0, True
        else:
            self._pace.earned(1)
            if before.decoding != last.decoding:
                self._since_s, self._steps, self._first = now_s, 0, False
            else:
                self._step(now_s, last.decoding)

    def _step(self, now_s: float, rows: int) -> None:
        """A cycle has waited for a step, and brought another one like it."""
        self._steps += 1
        if self._first or self._steps == STEPS_AT_ONCE:
            self._pace.stepped(now_s - self._since_s, rows, self._steps)
            self._since_s, self._steps, self._first = now_s, 0, False

    def end(self, began_s: float, decoding: int, tokens: int) -> None:
        """What the cycle did that began then."""
        self._before, self._last = self._last, Cycle(began_s, decoding, tokens)

    def rest(self) -> None:
        """Nothing follows the last cycle."""
        self._last = self._before = None
