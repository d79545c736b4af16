"""Writes pictures of `lattice chat`, as a newcomer sees it: `python scripts/pictures.py docs/pictures`.

The real command runs in a pseudo-terminal with a scripted model; an emulator holds the screen, rich draws it as SVG.

Thread: any
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.style import Style
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.chat.emulator import CuttingTerminal
from tests.chat.terminal import Talk, script

COLUMNS = 80
SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")
COLOURS = {"brown": "yellow", "brightbrown": "bright_yellow"}
THOUGHT = "The user wants both ways, and when to use which. A table will do, and one example."
ANSWER = """\
Both use **Timsort**, and both are stable:

| way | new list | use it when |
|---|---|---|
| `sorted(items)` | yes | the old order is still needed |
| `items.sort()` | no | the list is large |

```python
def oldest_first(people: list[Person]) -> list[Person]:
    \"\"\"The oldest person comes first.\"\"\"
    return sorted(people, key=lambda person: person.age, reverse=True)
```

See the [how-to](https://docs.python.org/3/howto/sorting.html) for more.
"""


class DimTerminal(CuttingTerminal):
    """pyte knows no dim letters; these are grey instead."""

    def feed(self, text: str) -> None:
        super().feed(SEQUENCE.sub(lambda found: f"\x1b[{_grey(found[1])}m", text))


def _grey(numbers: str) -> str:
    return ";".join("90" if number == "2" else number for number in numbers.split(";"))


def screen(talk: Talk, rows: int) -> Text:
    """The last rows that are not empty, with their styles."""
    text = Text()
    shown = talk.terminal.screen
    last = max(y for y in range(shown.lines) if "".join(shown.display[y]).strip())
    for y in range(max(0, last - rows + 1), last + 1):
        for x in range(COLUMNS):
            char = shown.buffer[y][x]
            style = Style(
                color=_colour(char.fg),
                bgcolor=_colour(char.bg),
                bold=char.bold,
                italic=char.italics,
                underline=char.underscore,
                reverse=char.reverse,
            )
            text.append(char.data, style)
        text.append("\n")
    return text


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    name = COLOURS.get(name, name)
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("bright", "bright_") if name.startswith("bright") and "_" not in name else name


def svg(text: Text, name: str) -> str:
    """The picture, without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    drawn = console.export_svg(title="lattice chat", unique_id=name)
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def pictures(folder: Path) -> Iterator[tuple[str, Text]]:
    """Name and screen of each."""
    thought = ["<think>", *re.findall(r"\S+ ?", THOUGHT), "</think>"]
    replies = (
        {"when": "prefill", "tokens": ["-"], "prefill_ms": 600_000},
        {"when": "sort", "tokens": [*thought, *re.findall(r"\S+\s*", ANSWER)], "token_ms": 15, "prefill_ms": 400},
        {"tokens": ["Hello!"]},
    )
    model = script(folder, *replies, name="scripted", think=["<think>", "</think>"], context_tokens=32768)
    with Talk(folder / "home", "--model", model, columns=COLUMNS, rows=30) as talk:
        talk.terminal = DimTerminal(COLUMNS, 30)
        talk.line("How do I sort a list in Python? A table, please.")
        talk.sees("prompt tokens")
        talk.at_prompt()
        yield "answer", screen(talk, 30)
        talk.send("/s")
        talk.sees("/sessions")
        yield "menu", screen(talk, 10)


def main(target: Path) -> None:
    """Write them all."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, text in pictures(Path(folder)):
            (target / f"chat-{name}.svg").write_text(svg(text, name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
