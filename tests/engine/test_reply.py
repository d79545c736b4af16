"""A reply's text with scores: every token's score comes with the piece its text is in, and with no other.

Thread: any
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lattice_cli.engine.calls import CallFragment
from lattice_cli.engine.reply import Reply
from lattice_cli.events import CallPart, Event, Piece, TokenScore
from lattice_cli.job import Channel, Job, Limits, Prompt, Sampling
from lattice_cli.model.card import Tokenizer

pytestmark = pytest.mark.pure

THINK = ("<t>", "</t>")


class Words:
    """Each id is the word of its place."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self._words = words
        self.vocabulary_size = len(words)

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        return self._words[token_id]


class Brackets:
    """A call parser for tests: what is between square brackets is a call; the rest is content."""

    def __init__(self) -> None:
        self._call: str | None = None

    def push(self, text: str) -> list[str | CallFragment]:
        parts: list[str | CallFragment] = []
        for letter in text:
            if self._call is not None:
                self._call += letter
                if letter == "]":
                    parts.append(CallFragment(0, "f", self._call[1:-1]))
                    self._call = None
            elif letter == "[":
                self._call = letter
            else:
                parts.append(letter)
        return parts

    def flush(self) -> list[str | CallFragment]:
        held, self._call = self._call, None
        return [held] if held else []


def job(stop: tuple[str, ...] = (), opens_in: Channel = Channel.ANSWER, keep: bool = False) -> Job:
    limits = Limits(100, stop, keep_stop=keep)
    return Job("j", Prompt((1,), "", opens_in), Sampling(), limits, logprobs=1)


def said(reply: Reply, words: Sequence[bytes]) -> list[Event]:
    events: list[Event] = []
    for token_id in range(len(words)):
        if reply.stopped_by is None:
            events += reply.push(token_id, (-float(token_id), ((token_id, -float(token_id)),)))
    return events if reply.stopped_by is not None else events + reply.flush()


def pieces(words: Sequence[bytes], asked: Job, calls: bool = False) -> list[Event]:
    tokenizer: Tokenizer = Words(words)
    return said(Reply(asked, tokenizer, THINK, Brackets() if calls else None), words)


def scored(events: Sequence[Event], channel: Channel = Channel.ANSWER) -> list[tuple[str, list[int]]]:
    mine = [event for event in events if isinstance(event, Piece) and event.channel is channel]
    return [(event.text, [score.token_id for score in event.scores]) for event in mine]


def test_a_score_is_of_the_token_with_its_bytes_and_the_likeliest_beside_it() -> None:
    (piece,) = pieces([b"hi"], job())
    assert piece == Piece("j", Channel.ANSWER, "hi", (TokenScore(0, b"hi", 0.0, ((b"hi", 0.0),)),))


def test_tokens_held_for_a_stop_come_with_the_piece_that_releases_them() -> None:
    held = [b"x", b"y", b"x", b"y", b"q"]
    assert scored(pieces(held, job(stop=("xyz",)))) == [("xy", [0, 1]), ("xyq", [2, 3, 4])]


def test_tokens_of_the_stop_string_have_no_score_but_where_it_is_kept() -> None:
    words = [b"a", b"bx", b"yz", b"never"]
    assert scored(pieces(words, job(stop=("xyz",)))) == [("a", [0]), ("b", [1])]
    assert scored(pieces(words, job(stop=("xyz",), keep=True))) == [("a", [0]), ("b", [1]), ("xyz", [2])]


def test_tokens_of_markers_and_empty_tokens_have_no_score_and_channels_have_their_own() -> None:
    words = [b"<t", b">\n", b"so", b"", b"\n", b"</t>", b"\n", b"a"]
    events = pieces(words, job())
    assert scored(events, Channel.REASONING) == [("so", [2])]
    assert scored(events) == [("a", [7])]


def test_a_token_with_an_end_of_a_marker_and_text_counts_for_the_text() -> None:
    events = pieces([b"<t>so</", b"t>\n\nHi"], job())
    assert (scored(events, Channel.REASONING), scored(events)) == ([("so", [0])], [("Hi", [1])])


def test_halves_of_a_letter_come_together() -> None:
    assert scored(pieces([b"\xf0\x9f", b"\x98", b"\x80!", b"\xe2"], job())) == [("😀!", [0, 1, 2]), ("\ufffd", [3])]


def test_tokens_of_calls_have_no_score_and_content_round_them_has() -> None:
    words = [b"a", b"b[", b"ab", b"]", b"b", b"[x", b"]\n", b"[open"]
    events = pieces(words, job(), calls=True)
    assert [event.arguments for event in events if isinstance(event, CallPart)] == ["ab", "x"]
    assert scored(events) == [("a", [0]), ("b", [1]), ("b", [4]), ("\n", [6]), ("[open", [7])]


def test_without_a_wish_there_are_no_scores() -> None:
    (piece,) = pieces([b"hi"], replace(job(), logprobs=None))
    assert piece == Piece("j", Channel.ANSWER, "hi")


def letters_and_owners(words: Sequence[bytes]) -> tuple[str, list[set[int]]]:
    """The whole text, and the tokens that each of its letters is of; for whole letters only."""
    owner_of_byte = [token for token, word in enumerate(words) for _ in word]
    text, owners, at = b"".join(words).decode(), [], 0
    for letter in text:
        owners.append(set(owner_of_byte[at : at + len(letter.encode())]))
        at += len(letter.encode())
    return text, owners


@st.composite
def replies(draw: st.DrawFn) -> list[bytes]:
    text = "".join(
        draw(st.lists(st.sampled_from(["<t>", "</t>", "\n", "x", "xy", "z", "é", "😀", " ", "[", "]"]), max_size=14))
    )
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=8)) | {0, len(data)})
    return [data[begin:end] for begin, end in itertools.pairwise(cuts)]


@given(replies(), st.sampled_from(list(Channel)), st.sampled_from([(), ("xyz",), ("zx", "éx"), ("\n",)]), st.booleans())
@example([b"<t>x", b"x</", b"t>\n", b"xyx", b"yz"], Channel.ANSWER, ("xyz",), False)
def test_every_letter_of_a_reply_brings_the_scores_of_its_tokens(
    words: list[bytes], opens_in: Channel, stop: tuple[str, ...], calls: bool
) -> None:
    """However the text is split: pieces, joined, are what single letters give, and after each piece the scores told
    are those of the tokens that had a letter in the pieces so far.
    """
    asked = job(stop, opens_in)
    text, owners = letters_and_owners(words)
    singly = [event for event in pieces([letter.encode() for letter in text], asked, calls) if isinstance(event, Piece)]
    shown = [score.token_id for event in singly for score in event.scores]  # places of the letters that come out
    assert [text[place] for place in shown] == [letter for event in singly for letter in event.text]
    told: list[int] = []
    letters = 0
    for event in pieces(words, asked, calls):
        if isinstance(event, Piece):
            told += [score.token_id for score in event.scores]
            letters += len(event.text)
            assert told == sorted({token for place in shown[:letters] for token in owners[place]})
    assert letters == len(shown)
