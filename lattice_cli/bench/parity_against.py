"""Our engine beside another server: the same prompts, greedy, and where their replies part.

Ours is asked in this process and gives its tokens with log-probabilities; theirs gives text. The first differing token
is told with the margin there: how far apart, in logits, our first choice and our second were, and how far behind our
first choice theirs lies. A small one is float error or quantization; a large one is another model, another template or
a fault. Thoughts are compared as text, so ask a thinking model with its thinking off. Knows tokens, texts and numbers;
knows no tensors.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from lattice_cli.bench.load import Question, Target, ask_whole
from lattice_cli.bench.questions import Messages
from lattice_cli.bench.reading import Miss
from lattice_cli.conversation import Role, said
from lattice_cli.engine.completion import Completion
from lattice_cli.engine.worker import EngineWorker, new_job_id
from lattice_cli.errors import BenchError
from lattice_cli.events import TokenScore
from lattice_cli.job import Channel, Job, Limits, Sampling
from lattice_cli.model.card import ModelCard
from lattice_cli.prompt.template import render_chat

TOP = 20  # as many of the likeliest as an engine tells
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two replies part: `token` is the number of the first that differs. `margin` is between our two likeliest
    there, `behind` how far theirs is behind ours; None where it is not among our likeliest. `ours` and `theirs` are the
    texts from there on; an empty one has ended.
    """

    token: int
    margin: float | None
    behind: float | None
    ours: str
    theirs: str


@dataclass(frozen=True, slots=True)
class Beside:
    """One prompt, asked of both. `prompt_tokens` are (ours, theirs): another count is another template."""

    number: int
    prompt: str
    tokens: int
    prompt_tokens: tuple[int, int]
    parting: Parting | None = None
    miss: str | None = None

    def word(self, margin: float) -> str:
        """`same`, `near tie` (they part where our choice was closer than `margin`), `differs` or `failed`."""
        if self.miss is not None:
            return "failed"
        if self.parting is None:
            return "same"
        there = self.parting.margin if self.parting.behind is None else self.parting.behind
        return "near tie" if there is not None and self.parting.behind is not None and there < margin else "differs"


def ask_both(
    worker: EngineWorker, target: Target, model: str, prompts: Sequence[Messages], max_tokens: int
) -> Iterator[Beside]:
    """Each prompt, first of us and then of them. The worker must be ready. Raises: what our engine failed with."""
    card = worker.wait_ready()
    for number, messages in enumerate(prompts):
        scores, prompt_tokens, ended = _ours(worker, card, messages, max_tokens)
        shown = messages[-1][1][:SHOWN_CHARACTERS]
        outcome = ask_whole(target, Question(model, messages, max_tokens))
        if isinstance(outcome, Miss):
            yield Beside(number, shown, len(scores), (prompt_tokens, 0), miss=outcome.reason)
            continue
        text, theirs = outcome
        parting = part(card, scores, text, ended=ended, cut=theirs.finish_reason == "length")
        yield Beside(number, shown, len(scores), (prompt_tokens, theirs.prompt_tokens), parting)


def _ours(
    worker: EngineWorker, card: ModelCard, messages: Messages, max_tokens: int
) -> tuple[list[TokenScore], int, bool]:
    """Our tokens with their scores, the end token's last where it ended us; the prompt's length; whether it did."""
    prompt = render_chat(card, [said(cast(Role, role), text) for role, text in messages])
    greedy = Sampling(temperature=0.0, repetition_penalty=1.0)
    job = Job(new_job_id(), prompt, greedy, Limits(max_tokens), reasoning_apart=False, logprobs=TOP)
    ticket, reply = worker.submit([job]), Completion(job.id)
    try:
        while not ticket.done:
            if (event := ticket.next()) is not None:
                reply.add(event)
    finally:
        ticket.cancel()
    if reply.failed is not None:
        raise reply.failed.error
    if reply.finished is None:
        raise BenchError("our engine gave no reply")
    end = reply.finished.end
    return [*reply.scores(Channel.ANSWER), *([end] if end else [])], len(prompt.ids), end is not None


def part(card: ModelCard, scores: Sequence[TokenScore], text: str, *, ended: bool, cut: bool) -> Parting | None:
    """The first of our tokens that their text does not go on with; None when all are there.

    `ended`: our last token is the end. `cut`: their reply ended by its length, so that what is missing is no end.
    """
    data, at = text.encode("utf-8", "surrogatepass"), 0
    spoken = scores[:-1] if ended else scores
    for number, score in enumerate(spoken):
        if not data.startswith(score.data, at):
            rest = data[at:]
            if cut and score.data.startswith(rest):  # a byte of a letter, or the reply was cut within this token
                return None
            return _parting(card, scores, number, rest)
        at += len(score.data)
    if ended and len(data) > at:
        return _parting(card, scores, len(spoken), data[at:])
    return None


def _parting(card: ModelCard, scores: Sequence[TokenScore], number: int, rest: bytes) -> Parting:
    here = scores[number]
    likely = sorted((logprob for _, logprob in here.top), reverse=True)
    margin = likely[0] - likely[1] if len(likely) > 1 else None
    theirs = card.tokenizer.encode(rest.decode("utf-8", "replace"))[:1]
    token = card.tokenizer.token_bytes(theirs[0]) if theirs else b""
    behind = next((here.logprob - logprob for data, logprob in here.top if data == token), None)
    ours = b"".join(score.data for score in scores[number:]).decode("utf-8", "replace")
    return Parting(number, margin, behind, ours[:SHOWN_CHARACTERS], rest.decode("utf-8", "replace")[:SHOWN_CHARACTERS])
