"""What is made of stdin and `--prompt`.

Thread: any
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from lattice_cli.chat.piped import decoded, one_prompt, read_piped
from lattice_cli.errors import UsageError

pytestmark = pytest.mark.pure


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[TextIO]:
    path = tmp_path / "text"
    path.write_bytes(b"a document\n\n")
    with path.open(encoding="utf-8") as stream:
        yield stream


def test_a_file_is_read_whole_without_its_last_breaks(opened: TextIO) -> None:
    assert read_piped(opened, beside_prompt=False) == "a document"


def test_a_document_beside_a_prompt_comes_below_it(opened: TextIO) -> None:
    assert one_prompt("Summarise:", read_piped(opened, beside_prompt=True)) == "Summarise:\n\na document"


def test_beside_a_prompt_the_null_device_is_not_read() -> None:
    """A program started by another often gets stdin as a device or socket that says nothing or never ends."""
    with open(os.devnull, encoding="utf-8") as stream:
        assert read_piped(stream, beside_prompt=True) is None
        assert read_piped(stream, beside_prompt=False) == ""


def test_no_stdin_at_all_is_nothing_piped() -> None:
    assert read_piped(None, beside_prompt=False) is None


@pytest.mark.parametrize(
    ("data", "text", "warned"),
    [
        (b"\x93quoted\x94", "�quoted�", True),
        ("café".encode("latin-1"), "caf�", True),
        (bytes(range(128, 131)), "���", True),
        ("\ufeffcafé".encode(), "café", False),
        (b"plain\n", "plain\n", False),
    ],
)
def test_bytes_that_are_not_utf_8_are_replaced_with_a_warning(
    data: bytes, text: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Report 131: piped text in another encoding failed far away with a surrogate error."""
    assert decoded(data, "the piped text") == text
    warning = "warning: the piped text is not UTF-8; what could not be read was replaced\n" if warned else ""
    assert capsys.readouterr() == ("", warning)


@pytest.mark.parametrize(
    ("prompt", "piped", "expected"),
    [
        ("Hi", None, "Hi"),
        (None, "Hi", "Hi"),
        ("Hi", "", "Hi"),
        ("Hi\n", "doc", "Hi\n\n\ndoc"),
        (None, None, None),
        ("caf\udce9", None, "caf�"),
    ],
)
def test_one_prompt_of_two_sources(prompt: str | None, piped: str | None, expected: str | None) -> None:
    assert one_prompt(prompt, piped) == expected


@pytest.mark.parametrize(("prompt", "piped"), [(None, ""), (None, " \n"), ("", None), ("", "doc"), (" ", "")])
def test_an_empty_prompt_is_a_usage_error(prompt: str | None, piped: str | None) -> None:
    with pytest.raises(UsageError):
        one_prompt(prompt, piped)


def test_the_wrapper_of_a_terminal_is_left_alone() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert read_piped(Terminal("typed"), beside_prompt=False) is None
