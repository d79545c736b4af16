"""What the terminal of `lattice chat` costs: `python scripts/chat_cost.py`. About three minutes on an idle machine.

A key to its letter on the screen while an answer comes slowly (no event wakes the terminal up then), and the processor
time of the thread that draws while an answer of 2,000 lines comes at 125 tokens a second. The last line is JSON.

Thread: any
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.chat.terminal import Talk, script
from tests.chat.test_screens import part, tokens

KEYS = 60
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def echoes_ms(folder: Path) -> list[float]:
    """Of each key, the time until its letter is on the screen."""
    model = script(folder, {"tokens": ["word "], "then": "repeat", "token_ms": 400}, context_tokens=30_000)
    times, typed = [], ""
    with Talk(folder / "home", "--model", model) as talk:
        talk.line("Go")
        talk.sees("word word")
        for number in range(KEYS):
            typed += chr(ord("a") + number % 26)
            mark, began_s = len(talk.raw), time.perf_counter()
            talk.send(typed[-1])
            talk.until(partial(_holds, talk, mark, f"> {typed}".encode()), "echo")
            times.append(1000 * (time.perf_counter() - began_s))
            time.sleep(0.03)
    return sorted(times)


def _holds(talk: Talk, mark: int, text: bytes) -> bool:
    return text in talk.raw[mark:]


def drawing(folder: Path) -> tuple[int, float, float]:
    """Lines of an answer, seconds it took, processor seconds of the thread that draws."""
    text = "".join(map(part, range(48)))
    model = script(folder, {"tokens": tokens(text, 4), "token_ms": 8}, context_tokens=90_000)
    with Talk(folder / "home", "--model", model) as talk:
        talk.at_prompt()
        began_s, used_s = time.perf_counter(), _used_s(talk.process.pid)
        talk.line("Go")
        talk.terminal.feed = lambda data: None  # type: ignore[method-assign]  # it needs longer than the chat
        end_s = time.monotonic() + 600
        while b"prompt tokens" not in talk.raw and time.monotonic() < end_s:
            talk._read(0.2)
        return text.count("\n"), time.perf_counter() - began_s, _used_s(talk.process.pid) - used_s


def _used_s(pid: int) -> float:
    """Of the main thread: it draws and reads keys; the engine has its own."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def main() -> None:
    """Measure both and say so."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        echo = echoes_ms(Path(first))
        lines, took_s, used_s = drawing(Path(second))
    p95 = echo[int(0.95 * len(echo))]
    print(f"key to echo: median {statistics.median(echo):.1f} ms, 95% within {p95:.1f} ms, {len(echo)} keys")
    print(f"{lines:,} lines in {took_s:.0f} s: {used_s:.2f} s of a core to draw them, {100 * used_s / took_s:.1f}%")
    print(
        json.dumps({"echo_ms": statistics.median(echo), "echo_p95_ms": p95, "lines": lines, "share": used_s / took_s})
    )


if __name__ == "__main__":
    main()
