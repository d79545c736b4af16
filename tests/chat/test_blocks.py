"""Markdown as it arrives, cut into blocks.

Thread: any
"""

from __future__ import annotations

import pytest

from lattice_cli.chat.blocks import Block, Kind, Splitter, Thoughts, halves
from lattice_cli.chat.markdown_blocks import Markdown

pytestmark = pytest.mark.pure

ANSWER = """\
# Title
Intro line one
and two.

1. First
   goes on
2. Code:
   ```python
   def f():

       return 1
   ```
   after it

   - nested
* star
---
| a | b |
|---|---|
| 1 | 2 |

> quoted
> more

~~~
- not an item
```
~~~~
    indented code
- ```sh
  ls
  ```
last"""

BLOCKS = [
    Block(Kind.TEXT, "# Title"),
    Block(Kind.TEXT, "Intro line one\nand two."),
    Block(Kind.ITEM, "First\ngoes on", marker="1.", gap=True),
    Block(Kind.ITEM, "Code:", marker="2."),
    Block(Kind.FENCE, "```python", 3, language="python"),
    Block(Kind.CODE, "def f():", 3),
    Block(Kind.CODE, "", 3),
    Block(Kind.CODE, "    return 1", 3),
    Block(Kind.FENCE, "```", 3),
    Block(Kind.TEXT, "after it", 3),
    Block(Kind.ITEM, "nested", 3, "•", gap=True),
    Block(Kind.ITEM, "star", marker="•"),
    Block(Kind.TEXT, "---"),
    Block(Kind.TEXT, "| a | b |\n|---|---|\n| 1 | 2 |"),
    Block(Kind.TEXT, "> quoted\n> more", gap=True),
    Block(Kind.FENCE, "~~~", gap=True, language=""),
    Block(Kind.CODE, "- not an item"),
    Block(Kind.CODE, "```"),
    Block(Kind.FENCE, "~~~~"),
    Block(Kind.CODE, "    indented code"),
    Block(Kind.ITEM, "", marker="•"),
    Block(Kind.FENCE, "```sh", 2, language="sh"),
    Block(Kind.CODE, "ls", 2),
    Block(Kind.FENCE, "```", 2),
    Block(Kind.TEXT, "last"),
]


def split(splitter: Splitter, *texts: str) -> list[Block]:
    return [block for text in texts for block in splitter.push(text)] + splitter.close()


def test_an_answer_is_cut_into_its_blocks() -> None:
    assert split(Markdown(), ANSWER) == BLOCKS


def test_where_the_text_was_cut_in_two_changes_no_block() -> None:
    """Tokens end anywhere: in a marker, in a fence, between \\r and \\n."""
    for at in range(len(ANSWER) + 1):
        assert split(Markdown(), ANSWER[:at], ANSWER[at:]) == BLOCKS, f"cut at {at}"
    assert split(Markdown(), *ANSWER) == BLOCKS
    assert split(Markdown(), *ANSWER.replace("\n", "\r\n")) == BLOCKS


def test_a_block_that_was_closed_never_changes() -> None:
    """What is printed cannot be taken back: the closed blocks of a beginning are those of the whole."""
    for at in range(len(ANSWER)):
        closed = Markdown().push(ANSWER[:at])
        assert closed == BLOCKS[: len(closed)]


def test_live_is_what_close_would_give() -> None:
    for at in range(len(ANSWER)):
        splitter = Markdown()
        splitter.push(ANSWER[:at])
        live = splitter.live()
        assert splitter.live() == live, "looking changes nothing"
        assert splitter.close() == live
        assert splitter.live() == []


def test_a_code_line_is_finished_at_its_end_not_at_the_end_of_the_code() -> None:
    """Report 126: a long program must not wait, and not be redrawn, until its last line."""
    splitter = Markdown()
    assert splitter.push("```py\nx = 1\ny") == [
        Block(Kind.FENCE, "```py", language="py"),
        Block(Kind.CODE, "x = 1"),
    ]
    assert splitter.live() == [Block(Kind.CODE, "y")]


def test_blank_lines_at_the_top_and_between_blocks_are_one_gap_or_none() -> None:
    assert split(Markdown(), "\n\na\n\n\n\nb\n\n") == [Block(Kind.TEXT, "a"), Block(Kind.TEXT, "b", gap=True)]
    assert split(Markdown(gap=True), "a") == [Block(Kind.TEXT, "a", gap=True)]


def test_a_bullet_of_a_closed_list_does_not_swallow_what_is_indented_later() -> None:
    text = "- item\n\n  of the item\n\nparagraph\n\n    code"
    assert split(Markdown(), text) == [
        Block(Kind.ITEM, "item", marker="•"),
        Block(Kind.TEXT, "of the item", 2, gap=True),
        Block(Kind.TEXT, "paragraph", gap=True),
        Block(Kind.CODE, "    code", gap=True),
    ]


def test_thoughts_are_lines_of_plain_text() -> None:
    assert split(Thoughts(), "# not a title\n\n- nor an item") == [
        Block(Kind.THOUGHT, "# not a title"),
        Block(Kind.THOUGHT, "- nor an item", gap=True),
    ]


def test_a_long_item_can_be_finished_in_part() -> None:
    block = Block(Kind.ITEM, "one two three", 2, "12.", gap=True)
    assert halves(block, 8) == (Block(Kind.ITEM, "one two", 2, "12.", gap=True), Block(Kind.TEXT, "three", 6))


def cut(splitter: Splitter, count: int) -> Block:
    """Show the first `count` characters of the live block."""
    (block,) = splitter.live()
    first, rest = halves(block, count)
    splitter.cut(rest)
    return first


@pytest.mark.parametrize(
    ("before", "after", "rest"),
    [
        ("one two\n", "three\n", "two\nthree"),
        ("one two\nthree\n", "four\n", "two\nthree\nfour"),
        ("one two\nthr", "ee\n", "two\nthree"),
        ("one two\n  ", "three\n", "two\n  three"),
    ],
)
def test_a_cut_between_lines_joins_no_words(before: str, after: str, rest: str) -> None:
    """A drawing may come right after a line break, when nothing of the next line is there yet."""
    splitter = Markdown()
    splitter.push(before)
    cut(splitter, 4)
    assert splitter.push(after) == []
    assert splitter.close() == [Block(Kind.TEXT, rest)]


def test_a_list_below_a_cut_paragraph_is_a_list() -> None:
    splitter = Markdown()
    splitter.push("one two\nthree\n- it")
    assert len(splitter.live()) == 2
    splitter = Markdown()
    splitter.push("one two\nthree\n")
    cut(splitter, 4)
    assert splitter.push("- item\n") == [Block(Kind.TEXT, "two\nthree")]


def test_a_lazy_line_of_a_cut_item_keeps_its_letters() -> None:
    """It stands further left than the item's text does."""
    splitter = Markdown()
    splitter.push("10. one two\nthree\n")
    cut(splitter, 4)
    splitter.push("lazy\n")
    assert splitter.close() == [Block(Kind.TEXT, "two\nthree\nlazy", 4)]


def test_the_rest_of_a_cut_paragraph_goes_on_wherever_its_lines_end() -> None:
    splitter = Markdown()
    splitter.push("- one two\nthree fo")
    assert cut(splitter, 4) == Block(Kind.ITEM, "one", marker="•")
    assert splitter.live() == [Block(Kind.TEXT, "two\nthree fo", 2)]
    assert splitter.push("ur\n- next\n") == [Block(Kind.TEXT, "two\nthree four", 2)]
    assert splitter.close() == [Block(Kind.ITEM, "next", marker="•")]


def test_the_rest_of_a_cut_line_is_never_read_as_a_marker() -> None:
    """`... as in a` / `- b` in the middle of a line is no list."""
    splitter = Markdown()
    splitter.push("one two")
    cut(splitter, 4)
    cut(splitter, 3)
    assert splitter.push("- no item\n") == []
    assert splitter.close() == [Block(Kind.TEXT, "- no item")]


def test_a_line_that_ends_where_it_was_cut_leaves_nothing() -> None:
    splitter = Thoughts()
    splitter.push("one two")
    assert cut(splitter, 7) == Block(Kind.THOUGHT, "one two")
    assert splitter.push("\n\nnext\n") == [Block(Kind.THOUGHT, "next", gap=True)]
    assert splitter.close() == []


def test_a_quotation_ends_what_stands_above_it() -> None:
    """In Markdown it needs no blank line. A table above it must not take its lines for rows."""
    splitter = Markdown()
    blocks = splitter.push("| a |\n|---|\n| 1 |\n> one\n> two\nlazy\n\nprose\n> three\n")
    assert blocks + splitter.close() == [
        Block(Kind.TEXT, "| a |\n|---|\n| 1 |"),
        Block(Kind.TEXT, "> one\n> two\nlazy"),
        Block(Kind.TEXT, "prose", gap=True),
        Block(Kind.TEXT, "> three"),
    ]
