"""Figures of saved records as SVG, drawn by matplotlib (the extra `plots`); without it there are none.

Text and axes take the page's own colour, so that a figure is read in light and dark.

Thread: any
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

from lattice_cli.bench.saved import Saved

INK = "#123457"  # replaced by the page's colour
SIZE_INCHES = (6.4, 3.2)
Series = dict[str, list[tuple[float, float]]]


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(saved: Saved) -> list[str]:
    """The SVG elements of a record; none where a line would have one point only."""
    plots = list(_plots(saved))
    return [
        _lines(name, axis, series) for name, axis, series in plots if any(len(line) > 1 for line in series.values())
    ]


def draw_together(records: Sequence[Saved]) -> dict[str, str]:
    """What several servers did under load, a line for each record: figures by name; none for fewer than two."""
    loads = [saved for saved in records if saved.kind == "load"]
    if len(loads) < 2:
        return {}
    figures = {}
    for name in ("total_tok_s", "first_token_ms", "gap_ms"):
        series: Series = {}
        for saved in loads:
            for block, value in saved.metric(name).items():
                series.setdefault(saved.path.stem, []).append((saved.blocks()[block]["clients"], value))
        figures[name] = _lines(name, "clients", series, logarithmic=True)
    return figures


def as_file(element: str) -> str:
    """A figure that stands alone, in a grey that is read on white and on black."""
    return element.replace("<svg", '<svg color="#808080"', 1)


def _plots(saved: Saved) -> Iterator[tuple[str, str, Series]]:
    """(what is drawn, over what, lines)."""
    points = saved.record.get("points", [])
    if saved.kind == "speed":
        for name in ("prefill_tok_s", "decode_tok_s"):
            series: Series = {}
            for point in points:
                if there := point["figures"].get(name):
                    usual = f"{point['prompt_tokens']} + {point['tokens']} tokens"
                    label = point["name"].removeprefix(usual).strip(", ") or "1 row"
                    series.setdefault(label, []).append((point["prompt_tokens"], there["median"]))
            yield name, "prompt tokens", series
    if saved.kind == "load":
        first: Series = {}
        for point in points:
            there = point["figures"]["first_token_ms"]
            for label in ("median", "p95") if there else ():
                first.setdefault(label, []).append((point["clients"], there[label]))
        yield "first_token_ms", "clients", first
        total = [(point["clients"], point["total_tok_s"]) for point in points if point["total_tok_s"]]
        yield "total_tok_s", "clients", {"all clients": total}


def _lines(name: str, axis: str, series: Series, *, logarithmic: bool = False) -> str:
    """One figure. `logarithmic`: for lines that are orders of magnitude apart."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "lattice"}
    settings |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for label, line in series.items():
            xs, ys = zip(*sorted(line), strict=True)
            axes.plot(xs, ys, marker="o", label=label)
        axes.set_xlabel(axis)
        axes.set_ylabel(name)
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:,g}")
            axes.yaxis.set_minor_formatter("{x:,g}")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks(sorted({x for line in series.values() for x, _ in line}))
        axes.grid(alpha=0.3)
        if logarithmic:
            axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        else:
            axes.legend(frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    element = drawn.getvalue()
    element = element[element.index("<svg") :]
    return re.sub(re.escape(INK), "currentColor", element, flags=re.IGNORECASE)
