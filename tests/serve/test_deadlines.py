"""`--request-timeout`: wherever a request is when its time is over, it ends then, and frees its slot.

Thread: any
"""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest

from lattice_cli.job import Job, Limits, Prompt, Sampling
from lattice_cli.settings import EngineSettings
from tests.serve.stage import PATH, REPLIES, Stage, body, eventually, stage, with_settings

pytestmark = pytest.mark.wire

ONE_SLOT = EngineSettings(max_rows=1, max_pending=2)
TIMEOUT_S = 0.3
THINK = {"when": "ponder", "tokens": ["<think>", "well "], "then": "hang"}


def house() -> Any:
    return stage(
        [THINK, *REPLIES],
        engine=ONE_SLOT,
        settings=with_settings(request_timeout_s=TIMEOUT_S),
        think=["<think>", "</think>"],
    )


def is_free(one: Stage) -> bool:
    """The next request is answered, in the one slot there is: on a busy machine not always in time."""
    with one.client() as client:
        eventually(lambda: client.post(PATH, json=body()).text.count("hello world") == 1)
    return one.worker.idle()


@pytest.mark.parametrize("what", ["mute", "prefill"])
@pytest.mark.parametrize("stream", [False, True])
def test_before_any_text_it_is_a_504(what: str, stream: bool) -> None:
    """Mid-prefill as well. Report 106: what stalls must end by a limit."""
    with house() as one, one.client() as client:
        began_s = time.monotonic()
        answer = client.post(PATH, json=body(what, stream=stream))
        took_s = time.monotonic() - began_s
        if stream and answer.status_code == 200:  # the slot was had, and the status said, before
            (told,) = [line for line in answer.text.splitlines() if line.startswith('data: {"error"')]
            error = json.loads(told.removeprefix("data: "))["error"]
        else:
            assert answer.status_code == 504
            error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("request_timeout", "server_error")
        assert TIMEOUT_S * 0.9 < took_s < 20  # the reply would go on for a minute
        assert is_free(one)


def test_in_the_queue_it_is_a_504_too() -> None:
    with house() as one, one.client() as client:
        held = one.worker.submit([Job("held", Prompt((1,), "", asked="hang"), Sampling(), Limits(9))])
        assert client.post(PATH, json=body("hi")).status_code == 504
        held.cancel()
        eventually(one.worker.idle)
        assert is_free(one)


def test_a_whole_answer_is_told_as_far_as_it_came() -> None:
    with house() as one, one.client() as client:
        said = client.post(PATH, json=body("tick")).json()
        (choice,) = said["choices"]
        assert choice["finish_reason"] == "length"
        assert set(choice["message"]["content"].split()) == {"tick"}
        assert said["usage"]["completion_tokens"] == choice["message"]["content"].count("tick")
        assert is_free(one)


def test_a_thought_is_output_and_one_choice_of_several_is_enough() -> None:
    with house() as one, one.client() as client:
        said = client.post(PATH, json=body("ponder", n=2)).json()
        assert {choice["finish_reason"] for choice in said["choices"]} == {"length"}
        assert said["choices"][0]["message"]["reasoning_content"] == "well "


def test_a_stream_ends_with_an_error_event() -> None:
    with house() as one:
        stream = one.openai().chat.completions.create(model="echo", messages=body("tick")["messages"], stream=True)
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="the time that a request may take is over"):  # noqa: PT012
            for chunk in stream:
                texts.append(chunk.choices[0].delta.content or "")
                assert chunk.choices[0].finish_reason is None
        assert "".join(texts).startswith("tick tick")
        assert is_free(one)


def test_what_ends_in_time_is_as_ever() -> None:
    with house() as one, one.client() as client:
        said = client.post(PATH, json=body()).json()
        assert said["choices"][0]["finish_reason"] == "stop"
