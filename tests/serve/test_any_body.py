"""Any JSON in any field: a 2xx or a clean 4xx, and the server lives.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from lattice_cli.serve.wire.chat import KNOWN as CHAT
from lattice_cli.serve.wire.completions import KNOWN as COMPLETIONS
from lattice_cli.serve.wire.fields import HARMLESS, NEUTRAL
from lattice_cli.serve.wire.messages import Message
from lattice_cli.settings import EngineSettings
from tests.samples import examples
from tests.serve.stage import PATH, Stage, stage

pytestmark = pytest.mark.wire

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1, -1, 2**63, 1e308])
WORDS = st.text(max_size=8) | st.sampled_from(["auto", "none", "text", "json_object", "low", "{}", "(", "f", "user"])
PLAIN = st.none() | st.booleans() | NUMBERS | WORDS
KEYS = st.sampled_from([
    "type", "function", "name", "schema", "json_schema", "parameters", "properties", "enum", "pattern", "items", "$ref",
    "include_usage", "json", "regex", "choice", "7", "-1", "role", "content", "text", "enable_thinking", "messages",
    "anyOf", "minimum", "maxLength", "tools", "mode", "allowed_tools", "strict", "required",
]) | st.text(max_size=4)  # fmt: skip
ANY = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
# Beside what is drawn, so that values meet a request that is otherwise good.
GOOD: dict[str, dict[str, Any]] = {
    PATH: {"messages": HI, "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
NAMES = {
    PATH: sorted({*CHAT, *HARMLESS, *NEUTRAL}),
    "/v1/completions": sorted({*COMPLETIONS, *HARMLESS, *NEUTRAL}),
    "/tokenize": ["prompt", "content", "messages", "add_special_tokens", "return_token_strs", "tools", "model"],
    "/detokenize": ["tokens", "model"],
}


@pytest.fixture(scope="module")
def house() -> Iterator[Stage]:
    replies = [{"tokens": ["{", "}"]}]
    engine = EngineSettings(max_rows=8, max_pending=8)
    with stage(replies, engine=engine, think=["<think>", "</think>"], tool_parser="json") as one:
        yield one


def ask(house: Stage, path: str, said: Any) -> None:
    """One request; a constraint that a script cannot keep may fail, and nothing else."""
    with house.client() as one:
        answer = one.post(path, content=json.dumps(said).encode(), headers={"Content-Type": "application/json"})
        broken_promise = "the reply cannot go on: " in answer.text
        assert answer.status_code in (200, 400, 404) or broken_promise, (path, said, answer.text)
        _check_shape(answer, broken_promise)
        assert one.get("/health").status_code == 200


def _check_shape(answer: httpx2.Response, broken_promise: bool) -> None:
    if answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text or broken_promise
    elif answer.status_code != 200:
        error = answer.json()["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert broken_promise or (error["code"] != "internal_error" and "Traceback" not in error["message"])


@given(st.data())
@examples(300, sample=100, unchecked=[HealthCheck.too_slow])
def test_any_value_in_any_field(house: Stage, data: st.DataObject) -> None:
    """mlx_lm.server's thread died of eight such values, its process of one (peers' failures); reports 7, 82 and 92."""
    path = data.draw(st.sampled_from(sorted(GOOD)))
    drawn = data.draw(st.dictionaries(st.sampled_from(NAMES[path]), ANY, min_size=1, max_size=3))
    ask(house, path, {**GOOD[path], **drawn})


@given(st.data())
@examples(150, sample=50, unchecked=[HealthCheck.too_slow])
def test_any_value_in_any_place_of_a_message(house: Stage, data: st.DataObject) -> None:
    names = st.sampled_from(sorted({*Message.__struct_fields__, "refusal", "annotations"}))
    message = data.draw(st.dictionaries(names, ANY, max_size=4))
    role = data.draw(st.sampled_from(["system", "user", "assistant", "tool", "developer"]))
    ask(house, PATH, {"messages": [*HI, {"role": role, "content": "x", **message}], "tools": TOOLS, "max_tokens": 3})


@given(ANY)
@examples(150, sample=50, unchecked=[HealthCheck.too_slow])
def test_any_schema_is_enforced_or_refused(house: Stage, schema: Any) -> None:
    """Report 64: a schema that cannot be compiled failed open, or as a 500."""
    said = {"type": "json_schema", "json_schema": {"name": "p", "schema": schema}}
    ask(house, PATH, {"messages": HI, "max_tokens": 3, "response_format": said})
    ask(house, PATH, {"messages": HI, "max_tokens": 3, "tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "f", "parameters": schema}}
    ]})  # fmt: skip


@given(ANY)
@examples(100, sample=40)
def test_any_body_at_all(house: Stage, said: Any) -> None:
    for path in GOOD:
        ask(house, path, said)


@given(st.text(max_size=60), st.data())
@examples(60, sample=25)
def test_streamed_text_joined_is_the_plain_reply_for_any_split(text: str, data: st.DataObject) -> None:
    """Reports 1, 2, 4, 5, 23, 25, 29 and 31: whatever the tokens are, and whatever stops the reply."""
    raw = text.encode() + data.draw(st.binary(max_size=4))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=12)))
    pieces = [raw[start:end].hex() for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stops = data.draw(st.lists(st.text(min_size=1, max_size=3), max_size=3))
    with stage([{"tokens": [{"hex": piece} for piece in pieces]}]) as house, house.client() as one:
        for path, key in ((PATH, "content"), ("/v1/completions", "text")):
            asked = {**GOOD[path], "max_tokens": 50, "stop": stops}
            plain = one.post(path, json=asked).json()["choices"][0]
            told = one.post(path, json={**asked, "stream": True}).text.split("\n")
            events = [json.loads(line[6:]) for line in told if line.startswith("data: {")]
            choices = [event["choices"][0] for event in events]
            joined = "".join((choice.get("delta") or choice).get(key) or "" for choice in choices)
            assert joined == (plain["message"]["content"] if path == PATH else plain["text"])
            assert choices[-1]["finish_reason"] == plain["finish_reason"]
            assert not any(stop in joined for stop in stops)
