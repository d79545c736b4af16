"""A server elsewhere as a partner: any that speaks OpenAI's chat completions.

It yields the events that the engine would, so nothing beyond this module knows of HTTP. Knows requests; where a
server is and what it lists is in remote_server.py, how a stream is read in remote_stream.py.

Thread: any
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lattice_cli.chat.partner import Count, Partner, Question
from lattice_cli.chat.remote_errors import REFUSED, UNREACHABLE
from lattice_cli.chat.remote_server import Offer, Server, offers_of
from lattice_cli.chat.remote_stream import RemoteStream
from lattice_cli.conversation import Turn
from lattice_cli.engine.worker import Ticket, new_job_id
from lattice_cli.errors import RemoteFailed, UsageError
from lattice_cli.job import Job, Limits, Prompt, Sampling, SamplingChoice

CHARACTERS_A_TOKEN = 3.5  # until an answer's usage tells
TOKENS_A_TURN = 4
NO_SAMPLING = Sampling()


def open_remote(server: Server, model: str | None, context_tokens: int | None = None) -> RemotePartner:
    """Ask the server what it has, and choose `model`, or else the first. Blocks. Raises: RemoteFailed."""
    offers = _listed(server, named=model is not None)
    if model is None and not offers:
        raise RemoteFailed(f"`{server.host}` lists no model", hint="name one with `--model`")
    return RemotePartner(server, _chosen(model or offers[0].name, offers), offers, context_tokens)


def _listed(server: Server, *, named: bool) -> list[Offer]:
    """What it lists. A server whose list is broken, or that has none, may have a `named` model all the same.

    Raises: RemoteFailed.
    """
    try:
        return offers_of(server)
    except RemoteFailed as error:
        if error.code in (UNREACHABLE, REFUSED) or not named:
            raise
        return []


def _chosen(model: str, offers: Sequence[Offer]) -> Offer:
    """By its name. A server may have more than it lists, so another name is tried, not refused."""
    return next((offer for offer in offers if offer.name == model), Offer(model))


class RemotePartner:
    """One model of a server. Tokens of a prompt are estimated from what the last answer's usage told."""

    def __init__(
        self, server: Server, offer: Offer, offers: Sequence[Offer] = (), context_tokens: int | None = None
    ) -> None:
        self.server, self._offer, self._offers, self._context_tokens = server, offer, offers, context_tokens
        self._characters_a_token = CHARACTERS_A_TOKEN

    @property
    def name(self) -> str:
        return self._offer.name

    @property
    def context_tokens(self) -> int | None:
        return self._context_tokens or self._offer.context_tokens

    @property
    def advice(self) -> SamplingChoice:
        return SamplingChoice()

    @property
    def floor(self) -> None:
        return None

    def count(self, question: Question) -> Count:
        turns = question.turns
        return Count(TOKENS_A_TURN * len(turns) + round(_characters(turns) / self._characters_a_token), exact=False)

    def ask(self, question: Question, max_tokens: int | None) -> Ticket:
        job = Job(new_job_id(), Prompt((), ""), NO_SAMPLING, Limits(max_tokens or 0))
        body = self._body(question, max_tokens)

        def learn(prompt_tokens: int) -> None:
            text_tokens = prompt_tokens - TOKENS_A_TURN * len(question.turns)
            if text_tokens > 0 and _characters(question.turns) > 0:
                self._characters_a_token = max(0.5, _characters(question.turns) / text_tokens)

        stream = RemoteStream(self.server, body, job, learn)
        return stream.begin()

    def models(self) -> Sequence[str]:
        return [self.name, *(offer.name for offer in self._offers if offer.name != self.name)]

    def switched(self, name: str) -> Partner:
        offers = _listed(self.server, named=True)
        if offers and name not in [offer.name for offer in offers]:
            listed = ", ".join(f"`{offer.name}`" for offer in offers[:10])
            raise UsageError(f"`{self.server.host}` has no model `{name}`", param="model", hint=f"it lists {listed}")
        return RemotePartner(self.server, _chosen(name, offers), offers, self._context_tokens)

    def close(self, timeout_s: float) -> bool:
        return True

    def _body(self, question: Question, max_tokens: int | None) -> dict[str, Any]:
        """What a person chose, and nothing that nobody chose: the server's own defaults hold."""
        body: dict[str, Any] = {
            "model": self.name,
            "messages": [_message(turn) for turn in question.turns],
            "stream": True,
            "stream_options": {"include_usage": True},
            **question.manner.fields,
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if question.continues:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if not question.thinks:
            body |= {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": False}}
        if question.schema is not None:
            schema = {"name": "answer", "strict": True, "schema": json.loads(question.schema)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


def _message(turn: Turn) -> dict[str, str]:
    message = {"role": str(turn.role), "content": turn.text}
    return message | ({"reasoning_content": turn.reasoning} if turn.reasoning else {})


def _characters(turns: Sequence[Turn]) -> int:
    return sum(len(turn.text) for turn in turns)
