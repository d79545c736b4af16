"""Saved records as Markdown, and as one HTML page that needs nothing beside it and follows the reader's light or dark.

Thread: any
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Any

from lattice_cli.bench.record import figure
from lattice_cli.bench.saved import Saved

STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .8rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
code { overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
"""

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def tables(saved: Saved) -> Iterator[tuple[str, Table]]:
    """(caption, table) pairs of a record."""
    blocks = saved.blocks()
    if blocks:
        names = list(dict.fromkeys(name for block in blocks.values() for name in block["figures"]))
        rows = [(title, *(_cell(block["figures"].get(name)) for name in names)) for title, block in blocks.items()]
        yield "Median (p5 .. p95)", (("", *names), rows)
    if saved.kind == "load":
        names = ["total_tok_s", "goodput_s", "requests", "good_replies"]
        rows = [
            (title, *(_value(block[name]) for name in names), _counted(block["errors"]))
            for title, block in blocks.items()
        ]
        yield "All clients together", (("", *names, "errors"), rows)
    if saved.kind == "speed":
        rows = [(title, *(_percent(block["limit_percent"][name]) for name in block["limit_percent"]),
                 str(block["noisy_trials"])) for title, block in blocks.items()]  # fmt: skip
        yield "Share of this machine's limit", (("", "prefill", "decode", "noisy trials"), rows)
    if saved.kind == "compare":
        rows = [
            (f"{one['of']} / {one['over']}, {one['figure']}", _value(one["ratio"]),
             f"{_value(one['low'])} .. {_value(one['high'])}", one["word"])
            for one in saved.record["ratios"]
        ]  # fmt: skip
        yield "Ratios, by turns", (("", "ratio", "95%", ""), rows)
    if saved.kind == "parity" and "suites" in saved.record:
        rows = [(suite, *map(str, found.values())) for suite, found in saved.record["suites"].items()]
        yield "Cases", (("", "agrees", "differs", "skipped"), rows)
    if saved.kind == "parity" and "prompts" in saved.record:
        rows = [(one["prompt"], one["verdict"]) for one in saved.record["prompts"]]
        yield f"Beside {saved.record['against']}", (("", "verdict"), rows)


def facts(record: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a reader must know of a record to measure it again; the command comes last."""
    machine = record.get("machine")
    if machine:
        name = machine["processor"] or machine["system"]
        more = f", {machine['accelerator']}" if machine["accelerator"] else ""
        yield (
            "machine",
            f"{name}, {machine['cores']} cores{more}, {machine['system']}, load {machine['load_1m']} before",
        )
    yield "versions", ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    for name in ("quantization", "kernels", "model_hash", "energy", "seed"):
        if record.get(name) is not None:
            yield name, str(record[name])
    for name in ("model_bytes", "peak_memory_bytes", "load_s"):
        if record.get(name):
            yield name, figure(record[name])
    yield "command", record["command"]


def title(saved: Saved) -> str:
    model = saved.record.get("model")
    return f"{saved.kind}: {model}, {saved.path.stem}" if model else f"{saved.kind}: {saved.path.stem}"


def markdown(records: Sequence[Saved]) -> str:
    """All records, one after the other."""
    lines: list[str] = []
    for saved in records:
        lines += [f"## {_bare(title(saved))}", ""]
        for caption, (columns, rows) in tables(saved):
            lines += [f"{caption}:", "", _row(columns), _row(["---"] * len(columns)), *map(_row, rows), ""]
        lines += [
            f"- {name}: {f'`{value}`' if name == 'command' else _bare(value)}" for name, value in facts(saved.record)
        ]
        lines += ["", *(f"- `{name}`: {text}" for name, text in saved.record.get("definitions", {}).items()), ""]
    return "\n".join(lines)


def page(records: Sequence[Saved], figures: Sequence[Sequence[str]], together: Sequence[str] = ()) -> str:
    """One HTML page; `figures` are the SVG elements of each record, `together` those of several."""
    parts = ["<!doctype html>", '<html lang="en"><meta charset="utf-8">',
             '<meta name="viewport" content="width=device-width">', "<title>lattice bench</title>",
             f"<style>{STYLE}</style>", "<h1>lattice bench</h1>"]  # fmt: skip
    if together:
        parts += ["<h2>load, side by side</h2>", *together]
    for saved, drawn in zip(records, figures, strict=True):
        parts.append(f"<h2>{html.escape(title(saved))}</h2>")
        for caption, (columns, rows) in tables(saved):
            head = "".join(f"<th>{html.escape(cell)}</th>" for cell in columns)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            parts.append(f"<p>{html.escape(caption)}</p><table><tr>{head}</tr>{body}</table>")
        parts += drawn
        told = [(name, value) for name, value in facts(saved.record)]
        items = "".join(f"<li>{name}: <code>{html.escape(value)}</code></li>" for name, value in told)
        meant = saved.record.get("definitions", {}).items()
        items += "".join(f"<li><code>{name}</code>: {html.escape(text)}</li>" for name, text in meant)
        parts.append(f"<ul>{items}</ul>")
    return "\n".join([*parts, "</html>", ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_bare, cells))} |"


def _bare(text: str) -> str:
    """Without what Markdown would take for markup of a table or a tag."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _cell(there: dict[str, float] | None) -> str:
    return f"{figure(there['median'])} ({figure(there['p5'])} .. {figure(there['p95'])})" if there else "-"


def _value(value: float | None) -> str:
    return "-" if value is None else figure(value)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def _counted(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in errors.items()) or "none"
