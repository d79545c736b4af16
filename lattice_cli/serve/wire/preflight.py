"""lattice_serve 0.6.1's look over the raw bytes of a body: how many parts a message has and how long each is, before
anything of it is built.

It stops without a word at the first thing that is no chat request, because the reading proper tells of that; the
last part found too large is the one that is told. A name written with an escape stops it too, as there.

Thread: any
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from lattice_cli.errors import BadRequest
from lattice_cli.serve.wire.serde.place import ARRAY, OBJECT, QUOTE, SerdeError
from lattice_cli.serve.wire.serde.reader import Reader
from lattice_cli.serve.wire.serde.skipping import skip
from lattice_cli.serve.wire.serde.tokens import NULL

MOST_PARTS = 64
MOST_BYTES = 65_536
CODE = "content_part_limit_exceeded"


def check_parts(body: bytes) -> None:
    """Raises: BadRequest for a part or a number of parts over the limit."""
    look = _Look(body)
    with suppress(SerdeError):
        look.request()
    if look.found is not None:
        raise BadRequest(look.found, code=CODE)


class _Look:
    """One look; `found` is what is wrong."""

    def __init__(self, body: bytes) -> None:
        self.found: str | None = None
        self._reader = Reader(body)
        self._message = self._part = 0

    def request(self) -> None:
        self._object({"messages": self._messages})

    def _messages(self) -> None:
        self._message = 0
        self._reader.enter(ARRAY, "")
        while self._reader.more(ARRAY, self._message):
            self._object({"content": self._content})
            self._message += 1
        self._reader.leave(ARRAY)

    def _content(self) -> None:
        self._part = 0
        if self._reader.peek() == QUOTE:
            self._text()
            return
        self._reader.enter(ARRAY, "")
        while self._reader.more(ARRAY, self._part):
            self._object({"text": self._text, "image_url": self._image})
            self._part += 1
            if self._part > MOST_PARTS:
                self.found = f"messages[{self._message}].content has too many parts; maximum is {MOST_PARTS}"
                self._reader.fail("too many parts")
        self._reader.leave(ARRAY)

    def _image(self) -> None:
        if self._reader.peek() == NULL:
            self._reader.word()
        else:
            self._object({"url": self._text})

    def _text(self) -> None:
        if self._reader.peek() == NULL:
            self._reader.word()
        elif self._reader.peek() != QUOTE:
            self._reader.mismatch("a string")
        elif len(self._reader.string().encode()) > MOST_BYTES:
            self.found = f"messages[{self._message}].content[{self._part}] exceeds {MOST_BYTES} bytes"

    def _object(self, looks: Mapping[str, Callable[[], None]]) -> None:
        """An object, with a look at the values of some names."""
        count = 0
        self._reader.enter(OBJECT, "")
        while self._reader.more(OBJECT, count):
            count += 1
            look = looks.get(self._name())
            if look is None:
                skip(self._reader)
            else:
                look()
        self._reader.leave(OBJECT)

    def _name(self) -> str:
        begin = self._reader.at
        name = self._reader.string()
        if b"\\" in self._reader.data[begin : self._reader.at]:
            self._reader.fail("an escape in a name")
        self._reader.colon()
        return name
