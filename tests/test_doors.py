"""Which way the doors open: every import of lattice_cli, read from the sources, points down the house.

Thread: any
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).parent.parent / "lattice_cli"

# Floors from the cellar up: a module imports its own floor and those below.
FLOORS = (
    ("errors", "conversation", "job", "events", "harmless"),
    ("settings", "policy", "telemetry", "console", "log_file", "options", "command_group", "address", "wording"),
    ("model", "kernels"),
    ("prompt",),
    ("engine",),
    ("serve", "chat", "bench", "manage"),
    ("cli",),
    ("__main__",),
)
DOORS = FLOORS[5]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
ENGINE_FOR_DOORS = r"engine\.(worker|open|completion|measure|guide)"

# A foreign package -> the places it may be imported, as a pattern over module names below lattice_cli.
HOMES = {
    "mlx": r"(model|engine|kernels)\..*",
    "mlx_lm": r"(model|engine|kernels)\..*",
    "mlx_lm.generate": r"engine\.(backend|reference)",
    "mlx_lm.models.cache": r"engine\.(backend|prefix_states|prefix_dump)|model\.network",
    "transformers": r"model\.tokenizer|bench\.rival_transformers",
    "torch": r"bench\.rival_transformers",
    "gguf": r"model\.\w+",
    "falcon": r"serve\.(?!wire).*",
    "waitress": r"serve\.server(_tasks)?",
    "prometheus_client": r"telemetry",
    "rich": r"console|chat\.(view|rendered)|bench\.report",
    "prompt_toolkit": r"chat\..*",
    "sseclient": r"bench\.(load|parity_stream)|chat\.remote_stream",
    "typer": r"cli|command_group|(serve\.(request_)?)?options|\w+\.command|bench\.(choices|\w+_command)|manage\.\w+",
}
THREAD_LINE = re.compile(r"\nThread: (any|worker|request)( \(.*\))?\Z")


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, nested ones too. PERF: a third of the time of ast.walk, which looks into expressions too."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inside in getattr(tree, part, ()):
            yield inside
            yield from statements(inside)


def imports(tree: ast.AST) -> set[str]:
    """Every module that may be meant: `from a import b` is `a` and `a.b`; lazy and typing imports count."""
    found: set[str] = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def faults(name: str, source: str) -> list[str]:
    """What a module called `name` below lattice_cli ("engine.row") does against the rules."""
    tree, room = ast.parse(source), name.split(".")[0]
    found = [] if THREAD_LINE.search(ast.get_docstring(tree) or "") else ["no `Thread:` line ends the docstring"]
    for wanted in sorted(imports(tree)):
        for package, homes in HOMES.items():
            if f"{wanted}.".startswith(f"{package}.") and not re.fullmatch(homes, name):
                found.append(f"imports {wanted}, which belongs to {homes}")
        if wanted.startswith("."):
            found.append(f"imports {wanted}, and imports are absolute here")
        ours = wanted.removeprefix("lattice_cli.")
        target = ours.split(".")[0]
        if ours == wanted or target not in FLOOR_OF or target == room:
            continue
        if FLOOR_OF[target] > FLOOR_OF[room] or (target in DOORS and room in DOORS):
            found.append(f"imports {wanted}, upstairs or next door")
        if room in DOORS and target == "engine" and ours != "engine" and not re.match(ENGINE_FOR_DOORS, ours):
            found.append(f"imports {wanted}, which does not leave the engine floor")
    return found


def modules() -> dict[str, Path]:
    """Dotted names below lattice_cli -> files; the package itself and its rooms' doors are left out."""
    files = sorted(ROOT.rglob("*.py"))
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files if file.stem != "__init__"}


def test_imports_point_down_the_house() -> None:
    """A second way between rooms is how a god object starts."""
    read = modules()
    assert len(read) > 300
    assert {name: found for name, file in read.items() if (found := faults(name, file.read_text("utf-8")))} == {}


def test_every_module_stands_on_a_floor() -> None:
    assert {name.split(".")[0] for name in modules()} <= set(FLOOR_OF)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("serve.app", "import mlx.core as mx"),
        ("engine.worker", "from mlx_lm.models import cache"),
        ("engine.row", "from mlx_lm.generate import BatchGenerator"),
        ("serve.wire.chat", "import falcon"),
        ("serve.command", "from waitress import serve"),
        ("chat.repl", "from rich.table import Table"),
        ("chat.view", "import typer"),
        ("serve.app", "from lattice_cli.chat.session import Session"),
        ("model.load", "def f():\n    from lattice_cli.engine.worker import EngineWorker"),
        ("serve.app", "from . import resources"),
        ("errors", "from lattice_cli.settings import Home"),
        ("serve.exchange", "from lattice_cli.engine.row import Row"),
        ("serve.exchange", "from lattice_cli.engine import scheduler"),
        ("errors", "try:\n    pass\nexcept OSError:\n    import mlx"),
        ("errors", "if True:\n    pass\nelse:\n    with open(''):\n        import mlx"),
        ("errors", "try:\n    pass\nfinally:\n    for x in ():\n        pass\n    else:\n        import mlx"),
        (
            "errors",
            "class A:\n    async def f(self):\n        match 1:\n            case 1:\n                import mlx",
        ),
    ],
)
def test_a_planted_violation_is_caught(name: str, line: str) -> None:
    """A rule that cannot fail proves nothing."""
    clean = '"""A module.\n\nThread: any\n"""\n'
    assert faults(name, clean) == []
    assert len(faults(name, clean + line)) >= 1


def test_a_module_without_its_thread_line_is_caught() -> None:
    assert faults("job", '"""A module."""\n') == ["no `Thread:` line ends the docstring"]
