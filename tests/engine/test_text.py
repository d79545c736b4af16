"""Every text stage, at every split point of its input.

Thread: any
"""

from __future__ import annotations

from itertools import combinations

import pytest

from lattice_cli.engine.text import ChannelSplitter, Detokenizer, StopScanner
from lattice_cli.job import Channel

pytestmark = pytest.mark.pure

THINK = ("<think>", "</think>")


def splits(text: str) -> list[list[str]]:
    """The text whole, one character at a time, and cut at every one and every two places."""
    every = [[text], list(text)]
    every += [[text[:i], text[i:]] for i in range(len(text) + 1)]
    every += [[text[:i], text[i:j], text[j:]] for i, j in combinations(range(len(text) + 1), 2)]
    return every


def detokenized(chunks: list[bytes]) -> list[str]:
    stage = Detokenizer(lambda index: chunks[index])
    return [*(stage.push(index) for index in range(len(chunks))), stage.flush()]


def test_letters_go_out_as_they_come_and_only_the_unfinished_emoji_waits() -> None:
    """Report 2: a fix for split emoji must not hold back the letters before it."""
    emoji = "😀".encode()
    tokens = [b"a", b"b", b"c", *(emoji[i : i + 1] for i in range(4)), b"d"]
    assert detokenized(tokens) == ["a", "b", "c", "", "", "", "😀", "d", ""]


def test_a_text_split_at_every_pair_of_bytes_is_the_same_text() -> None:
    """Report 1: a character made of several tokens must not become replacement marks."""
    text = "é😀👨‍👩‍👧 三行诗\u2028x"
    data = text.encode()
    for i, j in combinations(range(len(data) + 1), 2):
        assert "".join(detokenized([data[:i], data[i:j], data[j:]])) == text


def test_bytes_that_can_never_be_text_become_replacement_marks_at_once_or_at_the_end() -> None:
    assert detokenized([b"a\xff", b"b", b"\xf0\x9f"]) == ["a�", "b", "", "�"]


def channels(
    parts: list[str], opens_in: Channel = Channel.ANSWER, think: tuple[str, str] | None = THINK
) -> tuple[str, str]:
    """Reasoning and answer of a reply that comes in these parts."""
    stage = ChannelSplitter(think, opens_in)
    texts = dict.fromkeys(Channel, "")
    for segments in [*map(stage.push, parts), stage.flush()]:
        for channel, text in segments:
            assert text, "a stage never says an empty text"
            texts[channel] += text
    return texts[Channel.REASONING], texts[Channel.ANSWER]


@pytest.mark.parametrize(
    ("reply", "opens_in", "expected"),
    [
        ("<think>\nwhy\n</think>\n\nso", Channel.ANSWER, ("why", "so")),
        (" \n<think>a\n\nb</think>c", Channel.ANSWER, ("a\n\nb", "c")),
        ("<think>\n\n</think>\n\nso", Channel.ANSWER, ("", "so")),
        ("why\n</think>\nso", Channel.REASONING, ("why", "so")),
        ("\n\nwhy, cut </thi", Channel.REASONING, ("why, cut </thi", "")),
        ("<think>cut\n", Channel.ANSWER, ("cut\n", "")),
        ("<thi", Channel.ANSWER, ("", "<thi")),
        ("no <think>marker</think> here", Channel.ANSWER, ("", "no <think>marker</think> here")),
        ("<think>a</think>b<think>c</think>", Channel.ANSWER, ("a", "b<think>c</think>")),
        ("a</think>b", Channel.ANSWER, ("", "a</think>b")),
        ("<think>a<think>b</thin</think>c", Channel.ANSWER, ("a<think>b</thin", "c")),
        ("  plain", Channel.ANSWER, ("", "  plain")),
        ("", Channel.ANSWER, ("", "")),
    ],
)
def test_thoughts_and_answer_are_told_apart_wherever_the_tokens_break(
    reply: str, opens_in: Channel, expected: tuple[str, str]
) -> None:
    for parts in splits(reply):
        assert channels(parts, opens_in) == expected, parts


def test_without_markers_everything_is_answer_at_once() -> None:
    assert ChannelSplitter(None).push("<think>x") == [(Channel.ANSWER, "<think>x")]


def test_reasoning_goes_out_as_it_comes_and_only_a_possible_marker_waits() -> None:
    stage = ChannelSplitter(THINK)
    said = [stage.push(part) for part in ("<think>", "hm", " x</", "b> y\n", "z</think>", "\n\n", "so")]
    r, a = Channel.REASONING, Channel.ANSWER
    assert said == [[], [(r, "hm")], [(r, " x")], [(r, "</b> y")], [(r, "\nz")], [], [(a, "so")]]


def stopped(parts: list[str], stops: tuple[str, ...]) -> tuple[str, str | None]:
    stage = StopScanner(stops)
    text = "".join([*map(stage.push, parts)])
    return (text if stage.matched else text + stage.flush()), stage.matched


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one two three four", ("two three",), ("one ", "two three")),  # report 23
        ("one two three four", ("o t",), ("one tw", "o t")),
        ("xENDMARK", ("ENDMARK",), ("x", "ENDMARK")),  # report 25
        ("xEND", ("ENDMARK",), ("xEND", None)),
        ("xbbyyyy", ("bb", "aaaaaaaaaaaa"), ("x", "bb")),  # report 29
        ("hellohello", ("elloh",), ("h", "elloh")),
        ("aaab", ("aab",), ("a", "aab")),
        ("abcd", ("bcd", "c"), ("ab", "c")),
        ("abab", ("abc", "bab"), ("a", "bab")),
        ("x\n\nUser: y", ("\nUser:", "\n\nUser"), ("x", "\n\nUser")),
        ("日本語です", ("語で",), ("日本", "語で")),
        ("nothing", (), ("nothing", None)),
    ],
)
def test_a_reply_ends_before_its_first_stop_string_wherever_the_tokens_break(
    text: str, stops: tuple[str, ...], expected: tuple[str, str | None]
) -> None:
    for parts in splits(text):
        assert stopped(parts, stops) == expected, parts


def test_at_most_the_longest_stop_string_is_held_back() -> None:
    stage = StopScanner(("ENDMARK", "zz"))
    assert [stage.push(part) for part in ("ab", "cE", "N", "Xz", "q")] == ["ab", "c", "", "ENX", "zq"]


def test_nothing_leaves_after_a_stop_string() -> None:
    stage = StopScanner(("b",))
    assert [stage.push("ab"), stage.push("c"), stage.flush()] == ["a", "", ""]
