"""The prefix cache as a client sees it: the real OpenAI client, a real process, llama and a hybrid model.

Thread: any
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serve.process import Process
from tests.tiny import write_tiny_folder

pytestmark = [pytest.mark.tiny, pytest.mark.timeout(300)]

WINDOW = 8192  # the tiny models' own of 512 bytes is too short for tools and documents
OPENING = 20  # tokens that any two conversations may begin with
SYSTEM = "You are a helpful assistant who answers in one sentence and never makes anything up. " * 2
DOCUMENT = " ".join(f"In the year {1000 + n} the town had {n * 37 % 90} mills." for n in range(60))
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city. " * 5,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_folder(tmp_path_factory.mktemp("tiny") / request.param, request.param)
    config = json.loads((folder / "config.json").read_text())
    (config.get("text_config") or config)["max_position_embeddings"] = WINDOW
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Served:
    """A server with a cache and one without, of one model."""

    def __init__(self, home: Path, folder: Path) -> None:
        arguments = ("--model", str(folder), "--alias", "tiny", "--port", "0", "--tool-fallback", "hermes")
        self.processes = [Process(home, *arguments), Process(home, *arguments, "--no-prefix-cache")]
        self.warm, self.cold = (
            openai.OpenAI(base_url=f"http://127.0.0.1:{one.port()}/v1", api_key="none", max_retries=0)
            for one in self.processes
        )

    def ask(self, messages: list[Any], **fields: Any) -> tuple[str, int, int]:
        """The text that both give, prompt tokens and cached tokens; the server without a cache has none."""
        warm, cold = (
            client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_completion_tokens=12, **fields
            )
            for client in (self.warm, self.cold)
        )
        assert warm.usage and cold.usage and warm.usage.prompt_tokens_details and cold.usage.prompt_tokens_details
        assert warm.choices[0].message.content == cold.choices[0].message.content
        assert warm.usage.prompt_tokens == cold.usage.prompt_tokens
        assert cold.usage.prompt_tokens_details.cached_tokens == 0
        text = warm.choices[0].message.content or ""
        return text, warm.usage.prompt_tokens, warm.usage.prompt_tokens_details.cached_tokens or 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("home"), folder)
    try:
        yield one
    finally:
        for process in one.processes:
            process.__exit__()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def test_an_edited_message_reuses_what_stands_before_it(served: Served) -> None:
    """A rival reuses 0 of 74 tokens on a hybrid model without a system message, and the system part alone with one.
    In a longer conversation, the third time, and with a system message.
    """
    first = "Tell me about the town and its mills. " * 3
    text, _, cached = served.ask([user(first)])
    assert cached < OPENING
    history = [user(first), assistant(text)]
    _, asked, cached = served.ask([*history, user("And who built the first one?")])
    assert cached > asked - 80
    _, asked, cached = served.ask([*history, user("When was that, roughly?")])
    assert cached > asked - 80
    with_system = [{"role": "system", "content": SYSTEM}, user(first)]
    text, _, _ = served.ask(with_system)
    history = [*with_system, assistant(text)]
    served.ask([*history, user("And who built the first one?")])
    _, asked, cached = served.ask([*history, user("When was that, roughly?")])
    assert cached > asked - 80


def test_the_same_body_again_reads_next_to_nothing(served: Served) -> None:
    """Reports 70 and 72: an equal answer, all of the prompt counted, nearly all of it cached."""
    answers = [served.ask([user("What is a mill? " * 10)]) for _ in range(3)]
    assert len({text for text, _, _ in answers}) == len({asked for _, asked, _ in answers}) == 1
    asked = answers[0][1]
    first, *others = [cached for _, _, cached in answers]
    assert first < OPENING
    assert others == [asked - 1, asked - 1]


def test_streams_store_as_plain_replies_do(served: Served) -> None:
    """Report 71: three streams with other ends. Report 72: the count is in their usage, too."""
    cached = []
    for end in ("one", "two", "three"):
        stream = served.warm.chat.completions.create(
            model="tiny",
            messages=[{"role": "system", "content": DOCUMENT}, {"role": "user", "content": f"Number {end}"}],
            max_completion_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = [chunk.usage for chunk in stream][-1]
        assert usage is not None and usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[0] < OPENING
    assert min(cached[1:]) > len(DOCUMENT)


def test_the_second_turn_over_a_document_reads_the_second_turn(served: Served) -> None:
    """Report 69."""
    first = [user(DOCUMENT + " How many mills were there?")]
    text, _, _ = served.ask(first)
    _, asked, cached = served.ask([*first, assistant(text), user("And in 1007?")])
    assert asked > 2000
    assert asked - cached < 120


def test_a_question_to_tools_is_answered_as_without_a_cache(served: Served) -> None:
    """Report 67: after the first request every one that hit the cache answered in prose. `ask` compares the answers."""
    for question in ("The weather in Oslo?", "And the one in Bergen, please?", "The weather in Oslo?"):
        _, asked, cached = served.ask([{"role": "system", "content": SYSTEM}, user(question)], tools=TOOLS)
    assert cached == asked - 1


def test_an_answer_that_comes_back_otherwise_is_reused_as_far_as_it_goes(served: Served) -> None:
    """Report 73: any difference threw the whole cache away."""
    first = [user("Say something long. " * 8)]
    text, asked, _ = served.ask(first)
    changed = text[:6] + "  odd   spacing " + text[6:]
    _, _, cached = served.ask([*first, assistant(changed), user("Go on")])
    assert cached >= asked - 20


def test_all_of_it_can_be_switched_off_and_bounded(tmp_path: Path, folder: Path) -> None:
    with Process(tmp_path, "--model", str(folder), "--port", "0", "--cache-bytes", "much") as refused:
        assert refused.ended() == 2
        assert "`much` is not a size" in refused.talk()
    with Process(tmp_path, "--model", str(folder), "--alias", "tiny", "--port", "0", "--cache-bytes", "1K") as small:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{small.port()}/v1", api_key="none")
        for _ in range(2):
            reply = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hello " * 20}], max_tokens=2
            )
        assert reply.usage and reply.usage.prompt_tokens_details
        assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_a_restart_goes_on_from_the_disk(tmp_path: Path, folder: Path) -> None:
    """Ended by a signal right after the reply; the second server knows its first turn. Another model does not."""
    arguments = ("--model", str(folder), "--alias", "tiny", "--port", "0", "--cache-dir", str(tmp_path / "cache"))
    messages: list[Any] = [user("What is a mill? " * 20)]
    cached = []
    for _ in range(2):
        with Process(tmp_path, *arguments) as process:
            client = openai.OpenAI(base_url=f"http://127.0.0.1:{process.port()}/v1", api_key="none")
            reply = client.chat.completions.create(
                model="tiny", messages=messages, temperature=0, max_completion_tokens=6
            )
            assert process.signal(signal.SIGTERM).ended() == 0, process.talk()
            assert "Traceback" not in process.talk()
        assert reply.usage and reply.usage.prompt_tokens_details
        cached.append(reply.usage.prompt_tokens_details.cached_tokens)
    assert cached == [0, reply.usage.prompt_tokens - 1]
