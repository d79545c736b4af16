"""What keys do on the input line, beyond what prompt_toolkit's emacs keys do, and how its letters are shown.

Thread: any
"""

from __future__ import annotations

from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from lattice_cli.chat.attach import at_words
from lattice_cli.chat.typed import Typed, block_open
from lattice_cli.harmless import STEERING

MOST_SENT = 20  # pasted messages that are known when they come back


class Pastes:
    """What was pasted into the line that is being edited."""

    def __init__(self) -> None:
        self._sent: dict[str, Typed] = {}
        self.clear()

    def clear(self) -> None:
        """A new line."""
        self._first = ""
        self._plain: frozenset[str] = frozenset()

    def take(self, text: str, *, at_start: bool) -> None:
        """Note a paste. One of several lines at the start of a line makes it a message."""
        self._plain |= at_words(text)
        if at_start and "\n" in text.strip("\n"):
            self._first = text.rstrip("\n")

    def typed(self, text: str) -> Typed:
        """The finished line, with what is known of its pastes. One that comes back, because it could not be sent or by
        Up, is what it was.
        """
        line = Typed(text, bool(self._first) and text.startswith(self._first), self._plain)
        if line.pasted or line.plain:
            self._sent[text] = line
            for oldest in [*self._sent][:-MOST_SENT]:
                del self._sent[oldest]
        return self._sent.get(text, line)


class HarmlessProcessor(Processor):
    """Shows one sign for each character of a paste that would steer the terminal or turn the text."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        fragments = transformation_input.fragments
        return Transformation([(style, STEERING.sub("?", text), *rest) for style, text, *rest in fragments])  # type: ignore[misc]


def line_keys(pastes: Pastes) -> KeyBindings:
    """Enter sends, but in an open block or on a path that is being completed; Alt-Enter is a new line."""
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None and not buffer.text.startswith("/"):
            buffer.complete_state = None
        elif block_open(buffer.text) and not pastes.typed(buffer.text).pasted:
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c", filter=typing)
    def _(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            event.app.exit(exception=KeyboardInterrupt())
        pastes.clear()
        event.current_buffer.reset()

    @keys.add(Keys.BracketedPaste, filter=typing)
    def _(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        buffer = event.current_buffer
        pastes.take(text, at_start=not buffer.document.text_before_cursor.strip())
        buffer.insert_text(text)

    return keys
