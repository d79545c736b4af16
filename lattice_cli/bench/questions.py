"""What clients ask: prose of a wanted length that begins unlike any other, or the prompts of a file.

The length is asked for in tokens but a client has no tokenizer, so two short probes tell how many tokens a word and
the chat template take; what was really read is reported from `usage`.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lattice_cli.bench.load import Question, Target, ask
from lattice_cli.bench.prose import words
from lattice_cli.bench.reading import Miss
from lattice_cli.errors import BenchError, UsageError

TASK = "Go on with this story; make it very long, with many chapters."
PROBE_WORDS = (16, 112)
_ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}

Messages = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Questions by number. `word_count` is how long prose is; with `conversations` they are asked in turn instead.
    `seed` makes the openings of prose unlike those of any run with another seed.
    """

    model: str
    max_tokens: int
    seed: int
    word_count: int = 0
    conversations: tuple[Messages, ...] = ()
    more: tuple[tuple[str, object], ...] = ()

    def question(self, number: int, max_tokens: int | None = None) -> Question:
        """Question `number` of this run."""
        if self.conversations:
            messages = self.conversations[number % len(self.conversations)]
        else:
            messages = prose_messages(self.seed + number, self.word_count)
        return Question(self.model, messages, max_tokens or self.max_tokens, self.more)


def prose_messages(number: int, count: int) -> Messages:
    """An opening of its own, `count` words of a story and what to do with them."""
    label = f"{number:x}"[::-1]  # the digit that changes comes first
    return (("system", f"{label} is your number."), ("user", f"{words(number, count)}\n{TASK}"))


def words_for(target: Target, source: Source, prompt_tokens: int) -> int:
    """How many words of prose make `prompt_tokens`: a straight line through two probes.

    Raises: BenchError when the server does not answer them.
    """
    counts = []
    for number, count in enumerate(PROBE_WORDS):
        messages = prose_messages(source.seed + number, count)
        outcome = ask(target, Question(source.model, messages, 2, source.more))
        if isinstance(outcome, Miss):
            raise BenchError(f"the server does not answer: {outcome.reason}", hint="check the address and --model")
        counts.append(outcome.prompt_tokens)
    per_word = (counts[1] - counts[0]) / (PROBE_WORDS[1] - PROBE_WORDS[0])
    if per_word <= 0:  # a server that counts no prompt tokens, or a scripted one
        return prompt_tokens
    fixed = counts[0] - per_word * PROBE_WORDS[0]
    return max(1, round((prompt_tokens - fixed) / per_word))


def read_dataset(path: Path) -> tuple[Messages, ...]:
    """Conversations of a file: a JSON object a line with `messages` or `prompt`, or ShareGPT's list of
    `conversations`; each ends with a user's turn. Raises: UsageError naming file and place.
    """
    try:
        text = path.read_text(encoding="utf-8")
        whole = text.lstrip().startswith("[")
        entries = json.loads(text) if whole else [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UsageError(f"`{path}` cannot be read: {error}", param="--dataset") from error
    found = tuple(_messages(entry, f"`{path}`, entry {number + 1}") for number, entry in enumerate(entries))
    if not found:
        raise UsageError(f"`{path}` has no prompts", param="--dataset")
    return found


def _messages(entry: Any, place: str) -> Messages:
    match entry:
        case {"prompt": str(text)}:
            return (("user", text),)
        case {"messages": [*turns]}:
            found = tuple(_turn(turn, "role", "content", place) for turn in turns)
        case {"conversations": [*turns]}:
            found = tuple(_turn(turn, "from", "value", place) for turn in turns)
        case _:
            raise UsageError(f"{place} has no `prompt`, `messages` or `conversations`", param="--dataset")
    last = max((at for at, (role, _) in enumerate(found) if role == "user"), default=-1)
    if last < 0:
        raise UsageError(f"{place} has no user's turn", param="--dataset")
    return found[: last + 1]


def _turn(turn: Any, role: str, text: str, place: str) -> tuple[str, str]:
    match turn:
        case dict() if turn.get(role) in _ROLES and isinstance(turn.get(text), str):
            return _ROLES[turn[role]], turn[text]
        case _:
            raise UsageError(f"{place} has a turn without a known `{role}` and a `{text}`", param="--dataset")


def token_counter(folder: Path) -> Callable[[str], int]:
    """Counts with the tokenizer of a folder. Raises: BrokenWeights, UsageError."""
    from lattice_cli.model.tokenizer import FastTokenizer

    if not folder.is_dir():
        raise UsageError(f"`{folder}` is no folder", param="--tokenizer")
    tokenizer = FastTokenizer.from_folder(folder)
    return lambda text: len(tokenizer.encode(text))
