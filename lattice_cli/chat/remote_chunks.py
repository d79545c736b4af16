"""What is in the chunks of an OpenAI-compatible stream, of whatever manner.

Servers differ: usage comes with the last chunk, in one of its own, or never; thoughts are `reasoning_content`,
`reasoning` or parts of the content; chunks may have only a role, or nothing; some put an error into the stream.

Thread: any (one at a time)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice_cli.chat.remote_errors import wrong_status
from lattice_cli.errors import RemoteFailed
from lattice_cli.events import FinishReason, Usage
from lattice_cli.job import Channel

REASONS: dict[str, FinishReason] = {"length": "length", "max_tokens": "length"}
THOUGHTS = ("reasoning_content", "reasoning")


@dataclass(slots=True)
class Heard:
    """What an answer of `host` has told so far, beside its text. `done`: `[DONE]` came, or what stands for it."""

    host: str
    usage: Usage = field(default_factory=Usage)
    reason: FinishReason | None = None
    done: bool = False

    def take(self, chunk: Any, *, failed: bool = False) -> list[tuple[Channel, str]]:
        """The texts of a chunk; `failed`: the stream calls it an error.

        Raises: RemoteFailed, PromptTooLong for an error; TypeError and its like for what is no chunk.
        """
        if failed or chunk.get("error"):
            raise wrong_status(self.host, 0, msgspec.json.encode(chunk))
        if isinstance(chunk.get("usage"), dict):
            self.usage = _usage(chunk["usage"])
        texts: list[tuple[Channel, str]] = []
        for choice in (chunk.get("choices") or ())[:1]:
            said = choice.get("delta") or choice.get("message") or {}
            texts += [(Channel.REASONING, said[key]) for key in THOUGHTS if isinstance(said.get(key), str)][:1]
            texts += _content(said.get("content") or said.get("refusal") or choice.get("text") or "")
            self._ended(choice.get("finish_reason"), calls=bool(said.get("tool_calls")))
        return [(channel, text) for channel, text in texts if text]

    def _ended(self, reason: Any, *, calls: bool) -> None:
        if calls:
            raise RemoteFailed(f"`{self.host}` calls a tool, and there is none here")
        if reason == "content_filter":
            raise RemoteFailed(f"a filter of `{self.host}` ended the answer")
        if reason:
            self.reason = REASONS.get(str(reason), "stop")


def _content(said: Any) -> list[tuple[Channel, str]]:
    """A text, or a list of parts, which may be thoughts."""
    if isinstance(said, str):
        return [(Channel.ANSWER, said)]
    texts = []
    for part in said:
        if part.get("type") == "thinking":
            texts += [(Channel.REASONING, text) for _, text in _content(part["thinking"])]
        else:
            texts += _content(part["text"])
    return texts


def _usage(said: dict[str, Any]) -> Usage:
    prompt, answer = said.get("prompt_tokens_details") or {}, said.get("completion_tokens_details") or {}
    return Usage(
        int(said.get("prompt_tokens") or 0),
        int(said.get("completion_tokens") or 0),
        int(prompt.get("cached_tokens") or 0),
        int(answer.get("reasoning_tokens") or 0),
    )
