"""Settings as people type them, in the server's names, ranges and words.

Thread: any
"""

from __future__ import annotations

from typing import Any

import pytest

from lattice_cli.chat.manner import NAMES, Manner, Named
from lattice_cli.errors import InvalidField, UsageError
from lattice_cli.job import Limits, Sampling, SamplingChoice
from lattice_cli.serve.wire.ending import ending_of
from lattice_cli.serve.wire.schema import SharedFields, max_tokens_of, sampling_of
from lattice_cli.wording import read_fields

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.25", 0.25),
        ("Temperature", "1", 1),
        ("top-k", "40", 40),
        ("max_tokens", "5e2", 500),
        ("seed", "-7", -7),
        ("stop", "END", "END"),
        ("stop", "END OF FILE", "END OF FILE"),
        ("stop", '"\\n"', "\n"),
        ("stop", '["a", "b"]', ["a", "b"]),
        ("stop", "42", "42"),
        ("logit_bias", '{"7": -100}', {"7": -100}),
        ("ignore_eos", "true", True),
    ],
)
def test_a_value_is_read_as_a_person_types_it(name: str, text: str, value: Any) -> None:
    assert Manner().typed(name, text).fields == {name.lower().replace("-", "_"): value}


@pytest.mark.parametrize("nothing", ["-", "none", "default", "None"])
def test_a_value_is_taken_away(nothing: str) -> None:
    assert Manner().having(seed=7, top_k=3).typed("seed", nothing) == Manner().having(top_k=3)


BAD: list[tuple[str, Any]] = [
    ("temperature", 3),
    ("temperature", -0.1),
    ("temperature", "warm"),
    ("temperature", True),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_p", 0),
    ("top_p", 1.01),
    ("min_p", 2),
    ("repetition_penalty", 0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3),
    ("seed", 2**64),
    ("seed", "x"),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"7": 101}),
    ("logit_bias", [1]),
    ("max_tokens", 0),
    ("max_tokens", "many"),
    ("min_tokens", -1),
    ("stop", ""),
    ("stop", ["a", ""]),
    ("stop", ["x"] * 17),
    ("stop", 3),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", list(range(65))),
    ("ignore_eos", "yes"),
    ("reasoning_budget", -1),
]


def served(name: str, value: Any) -> None:
    """What the server makes of it."""
    fields = read_fields({name: value}, SharedFields)
    sampling_of(fields)
    max_tokens_of(fields)
    ending_of(fields)


@pytest.mark.parametrize(("name", "value"), BAD, ids=str)
def test_a_bad_value_is_refused_in_the_servers_words(name: str, value: Any) -> None:
    """One field, one range, one sentence, wherever it is said; so the two cannot drift apart."""
    with pytest.raises(UsageError) as ours:
        Manner().having(**{name: value})
    with pytest.raises(InvalidField) as servers:
        served(name, value)
    said, expected = ours.value.message, servers.value.message
    assert said == expected.replace("`stop[1]`", "`stop`")


def test_a_top_k_of_minus_one_is_all_tokens() -> None:
    assert Manner().having(top_k=-1).choice.top_k == 0


def test_a_setting_that_contradicts_another_is_refused() -> None:
    with pytest.raises(UsageError, match=r"`min_tokens` must be at most `max_tokens` \(5\)"):
        Manner().having(max_tokens=5).typed("min_tokens", "6")


@pytest.mark.parametrize(
    ("name", "words"), [("temprature", "did you mean `temperature`?"), ("xyz", "there are temperature, top_k")]
)
def test_an_unknown_setting_says_which_there_are(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"there is no setting `{name}`") as error:
        Manner().typed(name, "1")
    assert words in (error.value.hint or "")


def test_every_sampling_field_and_every_limit_can_be_set() -> None:
    """A field that is added to the engine and not to `/set` fails here."""
    assert set(Sampling.__dataclass_fields__) <= set(NAMES)
    renamed = {"reasoning_tokens": "reasoning_budget", "stop_ids": "stop_token_ids", "ignore_end": "ignore_eos"}
    renamed |= {"keep_stop": "include_stop_str_in_output"}
    not_a_persons = {"answer_tokens", "deadline_s"}  # of a policy; of a server
    limits = {renamed.get(name, name) for name in Limits.__dataclass_fields__ if name not in not_a_persons}
    assert limits <= set(NAMES)
    assert set(Named.__struct_fields__) <= set(SharedFields.__struct_fields__)


def test_rows_say_where_a_value_comes_from() -> None:
    rows = dict(Manner().having(top_k=3, stop=["a"]).rows(SamplingChoice(temperature=0.6), Sampling()))
    assert (rows["top_k"], rows["stop"], rows["temperature"]) == ("3", '["a"]', "0.6 (the model's)")
    assert (rows["top_p"], rows["seed"], rows["max_tokens"]) == (
        "0.9 (built in)",
        "random (built in)",
        "what fits (built in)",
    )
    assert dict(Manner().rows(SamplingChoice(), None))["top_p"] == "the server's own"
