"""Golden bytes of the chat dialect.

Thread: any
"""

from __future__ import annotations

import json

import pytest

from lattice_cli.engine.completion import Completion
from lattice_cli.errors import EngineFault
from lattice_cli.events import Finished, Piece, Timing, Usage
from lattice_cli.job import Channel
from lattice_cli.serve.sse import encode
from lattice_cli.serve.wire.chat import ChatVoice

pytestmark = pytest.mark.pure

HEAD = b'data: {"id":"chatcmpl-1","created":1700000000,"model":"a/b","object":"chat.completion.chunk",'
USAGE = Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=4, reasoning_tokens=1)


def voice(*, include_usage: bool = False) -> ChatVoice:
    return ChatVoice("chatcmpl-1", 1_700_000_000, "a/b", include_usage=include_usage)


def finished(reason: str = "stop", job_id: str = "j") -> Finished:
    return Finished(job_id, reason, USAGE, Timing())  # type: ignore[arg-type]


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
        + HEAD + b'"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
        + b"data: [DONE]\n\n"
    )  # fmt: skip


def test_thoughts_have_a_field_of_their_own() -> None:
    frames = voice().chunk(2, Piece("j", Channel.REASONING, "hm"))
    assert encode(frames) == (
        HEAD + b'"choices":[{"index":2,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}\n\n'
    )


def test_usage_is_one_last_chunk_and_only_when_asked() -> None:
    """Report 11: usage on content chunks is counted twice by clients."""
    assert encode(voice(include_usage=True).end([finished(), finished()])) == (
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
    """Reports 10 and 13."""
    answers = [completion((Channel.ANSWER, "a"), (Channel.ANSWER, "b")), completion((Channel.REASONING, "hm"))]
    assert voice().whole(answers) == (
        b'{"id":"chatcmpl-1","created":1700000000,"model":"a/b","object":"chat.completion","choices":['
        b'{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"},'
        b'{"index":1,"message":{"role":"assistant","content":"","reasoning_content":"hm"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":7,"completion_tokens":6,"total_tokens":13,'
        b'"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}'
    )
