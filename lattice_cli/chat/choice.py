"""A question on the terminal that one key answers.

Thread: any
"""

from __future__ import annotations

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import Output


def choice(question: str, keys: str, keyboard: Input, output: Output) -> str:
    """The key of `keys` that was pressed; "" for any other, Enter, Esc and Ctrl-C among them."""
    bindings = KeyBindings()

    @bindings.add(Keys.Any)
    @bindings.add("enter")
    @bindings.add("escape")
    @bindings.add("c-c")
    @bindings.add("c-d")
    def _(event: KeyPressEvent) -> None:
        pressed = event.data.lower()
        event.app.exit(result=pressed if len(pressed) == 1 and pressed in keys else "")

    control = FormattedTextControl(FormattedText([("bold", question + " ")]), focusable=True, show_cursor=True)
    window = Window(control, wrap_lines=True, dont_extend_height=True)
    app: Application[str] = Application(Layout(window), key_bindings=bindings, input=keyboard, output=output)
    return app.run(handle_sigint=False)
