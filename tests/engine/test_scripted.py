"""The scripted model: each field of its file, through the real engine, on a clock that stands still.

Thread: any
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.conversation import said
from lattice_cli.engine.engine import Engine
from lattice_cli.engine.scripted import ScriptedBackend, ScriptTokenizer, open_script, read_script
from lattice_cli.errors import BadScript, UsageError
from lattice_cli.events import Event, Failed, Finished, Piece
from lattice_cli.job import Channel, Constraint, Job, Limits, Sampling
from lattice_cli.model.card import ModelCard, ModelSource
from lattice_cli.prompt.template import render_chat
from lattice_cli.settings import EngineSettings
from tests.engine.fake import Clock

pytestmark = pytest.mark.pure


class Stage:
    """A script, an engine and a clock that only `run` moves, to each next thing that is due."""

    def __init__(self, tmp_path: Path, *replies: dict[str, Any], **fields: Any) -> None:
        path = tmp_path / "play.json"
        path.write_text(json.dumps({"replies": replies, **fields}))
        script, self.clock = read_script(path), Clock()
        self.card, _ = open_script(ModelSource("play", path, "script"), None)
        assert isinstance(self.card.tokenizer, ScriptTokenizer)
        self.tokenizer = self.card.tokenizer
        backend = ScriptedBackend(script, self.tokenizer, clock=self.clock)
        self.engine = Engine(self.card, backend, EngineSettings(), clock=self.clock)

    def ask(self, name: str, text: str = "hi", max_tokens: int = 50, choice: int = 0, **wishes: Any) -> None:
        prompt = render_chat(self.card, [said("user", text)])
        self.engine.add(Job(name, prompt, Sampling(), Limits(max_tokens), choice=choice, **wishes))

    def run(self, until_s: float = 1e9) -> list[Event]:
        events: list[Event] = []
        while not self.engine.idle:
            ready_in_s = self.engine.ready_in_s()
            if ready_in_s is None or self.clock.now_s + ready_in_s > until_s:
                break
            self.clock.now_s += ready_in_s
            events += self.engine.step()
        return events


def answer(events: list[Event], name: str = "a", channel: Channel = Channel.ANSWER) -> str:
    return "".join(e.text for e in events if isinstance(e, Piece) and e.job_id == name and e.channel is channel)


def end_of(events: list[Event], name: str = "a") -> Finished:
    (end,) = [event for event in events if isinstance(event, Finished) and event.job_id == name]
    return end


def test_the_first_reply_whose_when_is_in_the_last_user_message_wins(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"when": "cat", "tokens": ["miau"]}, {"when": "c", "tokens": ["see"]}, {"tokens": ["else"]})
    for name, text in (("a", "a cat"), ("b", "c"), ("c", "x")):
        stage.ask(name, text)
    events = stage.run()
    assert [answer(events, name) for name in "abc"] == ["miau", "see", "else"]


def test_no_match_is_an_empty_reply_that_ends(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"when": "cat", "tokens": ["miau"]})
    stage.ask("a", "dog")
    end = end_of(stage.run())
    assert (end.reason, end.usage.completion_tokens) == ("stop", 0)


def test_elements_are_tokens_bytes_join_and_the_end_is_not_counted(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["a ", {"hex": "f09f"}, {"hex": "9880"}, "", "b"]})
    stage.ask("a")
    events = stage.run()
    assert answer(events) == "a 😀b"
    assert end_of(events).usage.completion_tokens == 5


def test_prompt_tokens_are_the_bytes_of_the_rendered_prompt_or_what_the_script_says(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": []})
    stage.ask("a", "hü")
    assert end_of(stage.run()).usage.prompt_tokens == len(
        "<|im_start|>user\nhü<|im_end|>\n<|im_start|>assistant\n".encode()
    )
    stage = Stage(tmp_path, {"tokens": []}, prompt_tokens=7)
    stage.ask("a", "hü")
    assert end_of(stage.run()).usage.prompt_tokens == 7


def test_repeat_cycles_until_the_limit_and_hang_waits_until_cancelled(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"when": "r", "tokens": ["x", "y"], "then": "repeat"}, {"tokens": ["z"], "then": "hang"})
    stage.ask("r", "r", max_tokens=5)
    stage.ask("h", "h")
    events = stage.run()
    assert answer(events, "r") == "xyxyx"
    assert end_of(events, "r").reason == "length"
    assert answer(events, "h") == "z"
    assert stage.engine.ready_in_s() is None
    assert [type(event) for event in stage.engine.cancel("h")] == [Finished]


def test_times_run_in_parallel_over_rows(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["a", "b", "c"], "prefill_ms": 1000, "token_ms": 100})
    stage.ask("a")
    stage.ask("b")
    events = stage.run()
    for name in "ab":
        timing = end_of(events, name).timing
        assert timing.prefill_s == pytest.approx(1.0)
        assert timing.first_token_s == pytest.approx(1.1)
        assert timing.decode_s == pytest.approx(0.3)  # b, c and the end
    assert stage.clock.now_s == pytest.approx(1.4)


def test_a_row_in_a_long_prefill_can_be_cancelled_before_it_ends(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["a"], "prefill_ms": 60_000})
    stage.ask("a")
    stage.run(until_s=1.0)
    assert [type(event) for event in stage.engine.cancel("a")] == [Finished]
    assert stage.engine.idle
    assert stage.clock.now_s < 60


def test_raise_at_fails_that_row_alone_at_that_token(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"when": "bad", "tokens": ["a", "b"], "raise_at": 1}, {"tokens": ["a", "b"]})
    stage.ask("bad", "bad")
    stage.ask("good", "good")
    events = stage.run()
    assert answer(events, "bad") == "a"
    assert [event.job_id for event in events if isinstance(event, Failed)] == ["bad"]
    assert answer(events, "good") == "ab"


def test_reasoning_is_told_apart_by_the_scripts_markers(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["<t", ">hm</", "t>", "so"]}, think=["<t>", "</t>"])
    stage.ask("a")
    events = stage.run()
    assert (answer(events, channel=Channel.REASONING), answer(events)) == ("hm", "so")


def test_a_template_of_its_own_may_open_the_thinking_block(tmp_path: Path) -> None:
    template = "{{ messages[0].content }}<think>\n"
    stage = Stage(tmp_path, {"tokens": ["hm</think>so"]}, think=["<think>", "</think>"], chat_template=template)
    stage.ask("a")
    events = stage.run()
    assert (answer(events, channel=Channel.REASONING), answer(events)) == ("hm", "so")


def test_each_choice_replays_the_reply(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["x", "y"]})
    stage.ask("a", choice=0)
    stage.ask("b", choice=1)
    events = stage.run()
    assert [answer(events, name) for name in "ab"] == ["xy", "xy"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{", "malformed"),
        ("[]", "Expected `object`"),
        ("{}", "`replies`"),
        ('{"replies": [{"tokens": [1]}]}', "$.replies[0].tokens[0]"),
        ('{"replies": [{"tokens": [{"hex": "zz"}]}]}', "$.replies[0].tokens[0]"),
        ('{"replies": [{"tokens": [], "then": "repeat"}]}', "$.replies[0]"),
        ('{"replies": [{"tokens": [], "then": "no"}]}', "$.replies[0].then"),
        ('{"replies": [{"tokens": [], "token_ms": -1}]}', "$.replies[0].token_ms"),
        ('{"replies": [], "contxt": 1}', "contxt"),
        ('{"replies": [], "think": ["", "x"]}', "$.think"),
        ('{"replies": [], "tool_parser": "xml"}', "$.tool_parser"),
        (b"\xff", "malformed"),
    ],
)
def test_a_malformed_file_is_one_sentence_with_the_place(tmp_path: Path, text: str | bytes, place: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BadScript) as refused:
        read_script(path)
    assert str(path) in refused.value.message
    assert place in refused.value.message
    assert "\n" not in refused.value.message
    assert refused.value.exit_code == 3


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadScript, match="No such file"):
        read_script(tmp_path / "none.json")


def test_the_context_flag_may_lower_a_scripts_window_and_not_raise_it(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('{"replies": [], "context_tokens": 100}')
    source = ModelSource("s", path, "script")

    def window(asked: int | None) -> ModelCard:
        return open_script(source, asked)[0]

    assert [window(None).context_tokens, window(64).context_tokens] == [100, 64]
    with pytest.raises(UsageError, match="100 tokens"):
        window(101)


THOUGHT = {"tokens": ["<t>", "a", "b", "c", "d", "</t>", "so"]}


def budgeted(stage: Stage, tokens: int, *, max_tokens: int = 50, answer: int | None = None, apart: bool = True) -> None:
    prompt = render_chat(stage.card, [said("user", "hi")])
    limits = Limits(max_tokens, reasoning_tokens=tokens, answer_tokens=answer)
    stage.engine.add(Job("a", prompt, Sampling(), limits, reasoning_apart=apart))


@pytest.mark.parametrize(
    ("tokens", "thought", "said_after"),
    [(3, "ab", "d</t>so"), (5, "abcd", "so"), (50, "abcd", "so")],
)
def test_a_budget_forces_the_closing_marker_in_place_of_an_element(
    tmp_path: Path, tokens: int, thought: str, said_after: str
) -> None:
    """Budget 3: `<t>`, a, b are free, the marker takes the place of c, and what the script says next is answer."""
    stage = Stage(tmp_path, THOUGHT, think=["<t>", "</t>"])
    budgeted(stage, tokens)
    events = stage.run()
    assert (answer(events, channel=Channel.REASONING), answer(events)) == (thought, said_after)


def test_a_budget_leaves_a_reply_without_a_thought_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": list("abcdef")}, think=["<t>", "</t>"])
    budgeted(stage, 2)
    assert answer(stage.run()) == "abcdef"


def test_with_thoughts_inside_the_answer_the_budget_counts_every_token_and_opens_an_answer_window(
    tmp_path: Path,
) -> None:
    """As lattice_serve: all tokens count, then the marker, then `max_tokens` answer tokens (cap 2 + 3 + 1)."""
    stage = Stage(tmp_path, {"tokens": list("abcdefghij")}, think=["<t>", "</t>"])
    budgeted(stage, 2, max_tokens=6, answer=3, apart=False)
    events = stage.run()
    assert answer(events) == "ab</t>def"
    end = end_of(events)
    assert (end.reason, end.usage.completion_tokens) == ("length", 6)


def test_a_thought_closed_early_opens_the_answer_window_then(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["<t>", "a</", "t>", *"bcdef"]}, think=["<t>", "</t>"])
    budgeted(stage, 20, max_tokens=24, answer=3, apart=False)
    events = stage.run()
    assert answer(events) == "<t>a</t>bcd"
    assert end_of(events).usage.completion_tokens == 6


def test_an_end_before_the_budget_is_an_end_and_hang_is_forced_out_of_its_thought(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["<t>"], "then": "hang"}, think=["<t>", "</t>"])
    budgeted(stage, 1, max_tokens=2)
    events = stage.run()
    assert end_of(events).usage.completion_tokens == 2
    stage = Stage(tmp_path, {"tokens": ["<t>", "a"]}, think=["<t>", "</t>"])
    budgeted(stage, 9)
    assert end_of(stage.run()).reason == "stop"


def test_a_reply_tells_what_the_engine_was_asked(tmp_path: Path) -> None:
    """What became of a request's body can be seen by any client, from below the whole path."""
    stage = Stage(tmp_path, {"tell": True, "tokens": [" so"]})
    sampling = Sampling(temperature=1.3, top_k=7, top_p=0.55, repetition_penalty=1.1, seed=7)
    stage.engine.add(
        Job("a", render_chat(stage.card, [said("user", "hé")]), sampling, Limits(9, stop=("zé\U0001f600",)))
    )
    events = stage.run()
    told, rest = json.JSONDecoder().raw_decode(answer(events))
    assert told == {
        "prompt": "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\n",
        "prompt_tokens": 53,
        "opens_in": "answer",
        "reasoning_apart": True,
        "choice": 0,
        "sampling": {
            "temperature": 1.3, "top_k": 7, "top_p": 0.55, "min_p": 0.0, "repetition_penalty": 1.1,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "seed": 7,
        },
        "limits": {"max_tokens": 9, "reasoning_tokens": None, "answer_tokens": None},
        "stop": ["zé\U0001f600"],
    }  # fmt: skip
    assert (answer(events)[rest:], end_of(events).usage.completion_tokens) == (" so", 2)


def test_what_is_told_is_one_token_of_its_own_row_and_forgotten_with_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tell": True, "tokens": []})
    for round in range(3):
        for name in ("a", "b"):
            stage.ask(f"{name}{round}", name, max_tokens=1)
        events = stage.run()
        for name in ("a", "b"):
            prompt = json.loads(answer(events, f"{name}{round}"))["prompt"]
            assert prompt.startswith(f"<|im_start|>user\n{name}<")
        assert stage.tokenizer.token_bytes(stage.tokenizer.end_id + 1) == b""


def test_a_job_that_ignores_ends_hears_them_until_its_limit(tmp_path: Path) -> None:
    """It waited for ever for a token after the end."""
    stage = Stage(tmp_path, {"tokens": ["a"], "token_ms": 1})
    prompt = render_chat(stage.card, [said("user", "hi")])
    stage.engine.add(Job("a", prompt, Sampling(), Limits(4, ignore_end=True)))
    events = stage.run()
    assert (answer(events), end_of(events).reason, end_of(events).usage.completion_tokens) == ("a", "length", 4)


YES = Constraint("json_schema", '{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"]}')


@pytest.mark.parametrize("tokens", [['{"ok"', ": true", "}"], ["{", '"ok":tr', "ue}"]])
def test_a_script_that_keeps_to_a_grammar_is_said_and_ends_with_it(tmp_path: Path, tokens: list[str]) -> None:
    stage = Stage(tmp_path, {"tokens": [*tokens, "and more that nobody hears"], "then": "repeat"})
    stage.ask("a", constraint=YES)
    events = stage.run()
    assert json.loads(answer(events)) == {"ok": True}
    assert end_of(events).reason == "stop"


@pytest.mark.parametrize(
    ("tokens", "sent"), [(["Sure! {"], ""), (["{", '"ok"', ": maybe"], '{"ok"'), (['{"ok"'], '{"ok"'), ([], "")]
)
def test_a_script_that_breaks_a_grammar_fails_closed(tmp_path: Path, tokens: list[str], sent: str) -> None:
    """Text outside the grammar is not sent, an end before the grammar is fulfilled is none, and neighbours go on."""
    stage = Stage(tmp_path, {"when": "bound", "tokens": tokens}, {"tokens": ["free"]})
    stage.ask("a", "bound", constraint=YES)
    stage.ask("b")
    events = stage.run()
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.job_id, failed.error.status) == ("a", 500)
    assert "grammar" in failed.error.message
    assert answer(events) == sent
    assert answer(events, "b") == "free"


def test_a_scripted_thought_comes_before_the_grammar_and_a_budget_ends_it(tmp_path: Path) -> None:
    """Report 59, and 61: thoughts and a schema together, with the line breaks that models write between them."""
    after = replace(YES, opens_after="</think>")
    thought = ["<think>", "so ", "{"]
    stage = Stage(
        tmp_path,
        {"when": "all", "tokens": [*thought, "</think>", "\n\n", '{"ok":', "false}"]},
        {"when": "plain", "tokens": ['{"ok":', "true}"]},
        {"when": "never", "tokens": [*thought, "so"]},
        think=["<think>", "</think>"],
    )
    stage.ask("a", "all", constraint=after)
    stage.ask("b", "plain", constraint=after)
    stage.ask("c", "never", constraint=after)
    events = stage.run()
    assert (answer(events, "a"), answer(events, "a", Channel.REASONING)) == ('{"ok":false}', "so {")
    assert answer(events, "b") == '{"ok":true}'
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.job_id == "c"


def test_a_told_reply_is_not_held_to_a_grammar(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": [], "tell": True})
    stage.ask("a", constraint=YES)
    assert json.loads(answer(stage.run()))["constraint"]["kind"] == "json_schema"


def test_a_script_is_sure_of_what_it_says(tmp_path: Path) -> None:
    stage = Stage(tmp_path, {"tokens": ["a", {"hex": "c3"}, {"hex": "a9"}]})
    stage.ask("a", logprobs=1)
    stage.ask("b", logprobs=0)
    events = stage.run()
    scores = {name: [s for e in events if isinstance(e, Piece) and e.job_id == name for s in e.scores] for name in "ab"}
    assert [(score.data, score.logprob, score.top) for score in scores["a"]] == [
        (data, 0.0, ((data, 0.0),)) for data in (b"a", b"\xc3", b"\xa9")
    ]
    assert [score.top for score in scores["b"]] == [(), (), ()]
    assert answer(events, "b") == "aé"
