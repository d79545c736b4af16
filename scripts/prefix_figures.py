"""What the prefix cache saves: `python scripts/prefix_figures.py MODEL [--kernels fast] [--tokens 1000] [--trials 3]`.

A chat with a long system message, asked four ways: cold, the same again, its next turn, and that turn edited. Seconds
from the question to the first token, in one process, one request at a time; the last line is JSON.

Thread: any
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from lattice_cli.bench.prose import words
from lattice_cli.engine.open import OpenEngine, open_engine
from lattice_cli.events import Finished, Piece
from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.model.locate import locate
from lattice_cli.settings import EngineSettings, read_home

Ids = tuple[int, ...]


def ask(opened: OpenEngine, name: str, turns: list[Ids], tokens: int = 24) -> tuple[Finished, Ids]:
    """How it ended, and the ids of the reply."""
    cuts = tuple(sum(map(len, turns[:place])) for place in range(1, len(turns)))
    prompt = Prompt(tuple(token for turn in turns for token in turn), "", cuts=cuts)
    limits = Limits(tokens, ignore_end=True)
    job = Job(name, prompt, Sampling(temperature=0.0), limits, logprobs=0, submitted_s=time.monotonic())
    opened.engine.add(job)
    said: list[int] = []
    while True:
        for event in opened.engine.step():
            if isinstance(event, Piece):
                said += [score.token_id for score in event.scores]
            if isinstance(event, Finished):
                return event, tuple(said)


def trial(opened: OpenEngine, number: int, tokens: int) -> dict[str, Finished]:
    def turn(role: str, text: str) -> Ids:
        return tuple(opened.card.tokenizer.encode(f"<|im_start|>{role}\n{text}<|im_end|>\n"))

    opening = tuple(opened.card.tokenizer.encode("<|im_start|>assistant\n"))
    question = turn("user", "What does the text say of rabbits?")
    system = turn("system", f"{number} is the page. {words(number, tokens)}")[: tokens - len(question) - len(opening)]
    found: dict[str, Finished] = {}
    found["cold"], reply = ask(opened, f"cold{number}", [system, question, opening])
    found["again"], _ = ask(opened, f"again{number}", [system, question, opening])
    before = [system, question, (*opening, *reply)]
    found["next turn"], _ = ask(opened, f"next{number}", [*before, turn("user", "And what of Alice?"), opening])
    edited = turn("user", "Who else is there, and what do they all want?")
    found["edited turn"], _ = ask(opened, f"edited{number}", [*before, edited, opening])
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("model")
    asked.add_argument("--kernels")
    asked.add_argument("--tokens", type=int, default=1000)
    asked.add_argument("--trials", type=int, default=3)
    given = asked.parse_args()
    home = read_home(kernels=given.kernels)
    opened = open_engine(locate(given.model, home), home, EngineSettings())
    trial(opened, 0, 100)  # warm-up
    trials = [trial(opened, number + 1, given.tokens) for number in range(given.trials)]
    figures = {}
    for name in trials[0]:
        times = sorted(one[name].timing.first_token_s for one in trials)
        usage = trials[-1][name].usage
        figures[name] = {
            "first_token_s": [round(each, 4) for each in times],
            "share_of_cold": round(
                statistics.median(times) / statistics.median(one["cold"].timing.first_token_s for one in trials), 4
            ),
            "cached_tokens": usage.cached_tokens,
            "prompt_tokens": usage.prompt_tokens,
        }
    opened.close()
    print(json.dumps({"model": given.model, "kernels": home.kernels, "figures": figures}))


if __name__ == "__main__":
    main()
