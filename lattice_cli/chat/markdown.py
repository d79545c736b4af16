"""Markdown text -> the tokens to show, so that nothing the model wrote is swallowed.

Knows markdown-it; knows no styles. HTML is text, link definitions are text, TeX keeps its backslashes,
single line breaks stay, pictures are shown as they were written, and `===` under a line is no heading.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, escape
from markdown_it.token import Token


def parsed(text: str) -> list[Token]:
    """The tokens of one block or more."""
    return [_shown(token) for token in _PARSER.parse(text)]


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    parser.disable(["reference", "lheading"])
    parser.inline.ruler.at("escape", _escape)
    return parser


def _escape(state: StateInline, silent: bool) -> bool:
    r"""A backslash escapes what it does in Markdown, but `\(` and `\[` are TeX and stay."""
    return state.src[state.pos + 1 : state.pos + 2] not in tuple("()[]") and escape(state, silent)


_PARSER = _parser()


def _shown(token: Token) -> Token:
    """A block's token with line breaks kept, pictures as they were written, bare links not said twice."""
    if token.children:
        token.children = [*_inline_shown(token.children)]
    return token


def _inline_shown(children: Sequence[Token]) -> Iterator[Token]:
    skip_close = False
    for i, token in enumerate(children):
        if token.type == "softbreak":
            token.type = "hardbreak"
        elif token.type == "image":
            text = f"![{token.content}]({token.attrs.get('src', '')})"
            token = Token("text", "", 0, content=text)
        elif token.type == "link_open" and i + 1 < len(children):
            skip_close = str(token.attrs.get("href")) in (children[i + 1].content, f"mailto:{children[i + 1].content}")
            if skip_close:
                continue
        elif token.type == "link_close" and skip_close:
            skip_close = False
            continue
        yield token
