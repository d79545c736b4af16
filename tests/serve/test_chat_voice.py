"""Golden bytes of the chat dialect.

Thread: any
"""

from __future__ import annotations

import json

import pytest

from lattice_cli.engine.completion import Completion
from lattice_cli.errors import EngineFault
from lattice_cli.events import CallPart, Finished, Piece, Timing, TokenScore, Usage
from lattice_cli.job import Channel
from lattice_cli.serve.sse import encode
from lattice_cli.serve.wire.chat_voice import ChatVoice

pytestmark = pytest.mark.pure

HEAD = b'data: {"id":"chatcmpl-1","created":1700000000,"model":"a/b","object":"chat.completion.chunk",'
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4, reasoning_tokens=1)
TIMING = Timing(queued_s=0.001, prefill_s=0.25, first_token_s=0.26, decode_s=0.5)
TIMINGS = (
    b'"timings":{"queued_ms":1.0,"prefill_ms":250.0,"first_token_ms":260.0,"decode_ms":500.0,"tokens_per_second":%b}'
)


def voice(*, include_usage: bool = False, logprobs: bool = False, choices: int = 1) -> ChatVoice:
    return ChatVoice(
        "chatcmpl-1", 1_700_000_000, "a/b", include_usage=include_usage, logprobs=logprobs, choices=choices
    )


def finished(reason: str = "stop", job_id: str = "j") -> Finished:
    return Finished(job_id, reason, USAGE, TIMING)  # type: ignore[arg-type]


def test_a_stream_from_its_role_to_done() -> None:
    """Reports 9, 12, 13, 14: one id, one finish, the role first, and the right `object`."""
    said = voice()
    stream = encode(
        [
            *said.open(0),
            *said.chunk(0, Piece("j", Channel.ANSWER, 'He said "hi"\n')),
            *said.close(0, finished("length")),
            *said.end([finished("length")]),
        ]
    )
    assert stream == (
        HEAD + b'"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}\n\n'
        + HEAD + b'"choices":[{"index":0,"delta":{"content":"He said \\"hi\\"\\n"},"finish_reason":null}]}\n\n'
        + HEAD + b'"choices":[{"index":0,"delta":{},"finish_reason":"length"}],' + TIMINGS % b"4.0" + b'}\n\n'
        + b"data: [DONE]\n\n"
    )  # fmt: skip


def test_thoughts_have_a_field_of_their_own() -> None:
    frames = voice().chunk(2, Piece("j", Channel.REASONING, "hm"))
    assert encode(frames) == (
        HEAD + b'"choices":[{"index":2,"delta":{"reasoning_content":"hm","reasoning":"hm"},"finish_reason":null}]}\n\n'
    )


def test_usage_is_one_last_chunk_and_only_when_asked() -> None:
    """Report 11: usage on content chunks is counted twice by clients; OpenAI's are null there."""
    asked = voice(include_usage=True, choices=2)
    assert encode(asked.open(0)) == (
        HEAD + b'"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}],"usage":null}\n\n'
    )
    assert encode(asked.close(0, finished())) == (
        HEAD + b'"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null,' + TIMINGS % b"4.0" + b"}\n\n"
    )
    assert encode(asked.end([finished(), finished()])) == (
        HEAD + b'"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":6,"total_tokens":13,'
        b'"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}\n\n'
        b"data: [DONE]\n\n"
    )
    assert encode(voice().end([finished()])) == b"data: [DONE]\n\n"


def test_a_fault_is_an_error_event_and_done_without_a_finish() -> None:
    """Report 15: an error was turned into a normal finish."""
    assert encode(voice().fault(EngineFault("generation failed"))) == (
        b'data: {"error":{"message":"generation failed","type":"server_error","param":null,"code":"internal_error"}}'
        b"\n\ndata: [DONE]\n\n"
    )


def test_no_byte_is_anything_but_ascii() -> None:
    """Report 8: clients split lines at U+2028, U+2029 and U+0085, or read Latin-1."""
    text = "\u2028\u2029\x85é😀\ufffd\x00\x7f"
    (frame,) = voice().chunk(0, Piece("j", Channel.ANSWER, text))
    assert frame.data.isascii()
    assert b"\n" not in frame.data
    assert json.loads(frame.data)["choices"][0]["delta"]["content"] == text


def completion(*pieces: tuple[Channel, str]) -> Completion:
    folded = Completion("j")
    for channel, text in pieces:
        folded.add(Piece("j", channel, text))
    folded.add(finished())
    return folded


def test_a_whole_answer() -> None:
    """Reports 10 and 13. OpenAI's schema asks for `refusal` and `logprobs`, null or not."""
    answers = [completion((Channel.ANSWER, "a"), (Channel.ANSWER, "b")), completion((Channel.REASONING, "hm"))]
    assert voice(choices=2).whole(answers) == (
        b'{"id":"chatcmpl-1","created":1700000000,"model":"a/b","object":"chat.completion","choices":['
        b'{"index":0,"message":{"role":"assistant","content":"ab","refusal":null},"logprobs":null,"finish_reason":"stop"},'
        b'{"index":1,"message":{"role":"assistant","content":"","refusal":null,"reasoning_content":"hm","reasoning":"hm"},'
        b'"logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":7,"completion_tokens":6,"total_tokens":13,'
        b'"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}},'
        + TIMINGS % b"8.0"
        + b"}"
    )


# Calls of tools.


def test_a_call_is_its_name_and_then_fragments_under_one_index() -> None:
    """Reports 22, 33 and 34: an index and an id of its own for each call, and fragments that join to JSON."""
    said = voice()
    parts = [
        CallPart("j", 0, "add", '{"a":'),
        CallPart("j", 0, None, "1}"),
        CallPart("j", 1, "add", ""),
        CallPart("j", 1, None, "{}"),
    ]
    deltas = [json.loads(frame.data)["choices"][0]["delta"] for part in parts for frame in said.call(0, part)]
    ids = [delta["tool_calls"][0].pop("id", None) for delta in deltas]
    assert deltas == [
        {"tool_calls": [{"index": 0, "type": "function", "function": {"name": "add", "arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
    ]
    assert ids[0] is not None and ids[0].startswith("call_")
    assert (ids[1], ids[3]) == (None, None)
    assert ids[2] not in (None, ids[0])


@pytest.mark.parametrize(("text", "content"), [("", None), ("Let me see. ", "Let me see. ")])
def test_a_whole_answer_with_calls_has_null_where_it_says_nothing_else(text: str, content: str | None) -> None:
    """Reports 30, 32, 41 and 48."""
    folded = Completion("j")
    for event in (
        *([Piece("j", Channel.ANSWER, text)] if text else []),
        CallPart("j", 0, "add", '{"a"'),
        CallPart("j", 0, None, ":1}"),
        CallPart("j", 1, "mul", "{}"),
        finished("tool_calls"),
    ):
        folded.add(event)
    (choice,) = json.loads(voice().whole([folded]))["choices"]
    ids = {call.pop("id") for call in choice["message"]["tool_calls"]}
    assert len(ids) == 2 and all(one.startswith("call_") for one in ids)
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": content,
            "refusal": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
                {"type": "function", "function": {"name": "mul", "arguments": "{}"}},
            ],
        },
        "logprobs": None,
        "finish_reason": "tool_calls",
    }


# Log-probabilities.

SCORES = (
    TokenScore(5, b"h\xc3\xa9", -0.5, ((b"h\xc3\xa9", -0.5), (b"\xf0\x9f", -1.5))),
    TokenScore(6, b"\xf0\x9f", float("-inf"), ()),
)
ENTRIES = [
    {
        "token": "hé",
        "logprob": -0.5,
        "bytes": [104, 195, 169],
        "top_logprobs": [
            {"token": "hé", "logprob": -0.5, "bytes": [104, 195, 169]},
            {"token": "\\xf0\\x9f", "logprob": -1.5, "bytes": [240, 159]},
        ],
    },
    {"token": "\\xf0\\x9f", "logprob": -9999.0, "bytes": [240, 159], "top_logprobs": []},
]


def test_each_token_has_its_log_probability_and_its_bytes() -> None:
    """Report 92; JSON has no infinity, and OpenAI sends -9999.0."""
    folded = Completion("j")
    pieces = [Piece("j", Channel.ANSWER, "hé", SCORES[:1]), Piece("j", Channel.ANSWER, "", SCORES[1:])]
    for piece in (*pieces, Piece("j", Channel.REASONING, "hm", SCORES[:1])):
        folded.add(piece)
    folded.add(finished())
    asked = voice(logprobs=True)
    (choice,) = json.loads(asked.whole([folded]))["choices"]
    assert choice["logprobs"] == {"content": ENTRIES, "refusal": None, "reasoning_content": ENTRIES[:1]}
    told = [json.loads(frame.data)["choices"][0] for piece in pieces for frame in asked.chunk(0, piece)]
    assert [one["logprobs"]["content"] for one in told] == [ENTRIES[:1], ENTRIES[1:]]
    assert [one["delta"] for one in told] == [{"content": "hé"}, {"content": ""}]


def test_nobody_hears_log_probabilities_who_did_not_ask() -> None:
    assert voice().chunk(0, Piece("j", Channel.ANSWER, "", SCORES)) == []
    (frame,) = voice().chunk(0, Piece("j", Channel.ANSWER, "hé", SCORES))
    assert "logprobs" not in json.loads(frame.data)["choices"][0]
