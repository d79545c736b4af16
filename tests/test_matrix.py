"""docs/capability-matrix.md: every proof it names exists, is run by `make test`, and a bogus one is caught.

Thread: any
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "capability-matrix.md").read_text(encoding="utf-8")
# The rows of the matrix of the servers we follow.
ROWS = (
    "Chat completion",
    "SSE streaming",
    "Disconnect cancellation",
    "Cross-turn prefix cache",
    "Grammar, response_format",
    "LoRA",
    "MTP, speculative decoding",
    "Reasoning budget, static",
    "Reasoning budget, adaptive",
    "Embeddings",
    "Perplexity",
    "Quantization workflow",
    "Metrics",
    "GET /v1/models",
    "GET /",
    "GET /health",
    "stop",
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "repetition_penalty",
    "min_p",
    "logprobs",
    "tools, tool_choice",
    "n above 1",
    "Non-text parts",
    "Unknown role",
    "Model validation",
    "max_tokens over the window",
    "Auth, rate limit",
    "Admission control",
    "Request precedence",
)


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "scripts" / "matrix.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["matrix"] = module
    spec.loader.exec_module(module)
    return module


matrix = load()


def named_tests() -> set[str]:
    return {proof for proof in re.findall(r"`([^`]+)`", TEXT) if "::" in proof}


@pytest.mark.pure
def test_every_proof_exists() -> None:
    assert matrix.faults(TEXT) == []


@pytest.mark.pure
def test_every_capability_of_the_followed_matrix_has_a_row() -> None:
    assert [row for row in ROWS if f"\n| {row} |" not in TEXT] == []


@pytest.mark.pure
@pytest.mark.parametrize(
    ("real", "bogus"),
    [
        ("openai/baseline_streaming_200", "openai/baseline_streaming_201"),
        ("lattice-0.5.0/max_tokens_zero", "lattice-0.6.1/max_tokens_zero"),
        ("`models/qwen3`", "`models/qwen9`"),
        ("::test_a_full_queue_is_503", "::test_a_full_queue_is_504"),
        ("tests/serve/test_policies.py", "tests/serve/test_policy.py"),
        ("`openai/one_seed_is_one_text`", "`one_seed_is_one_text`"),
        ("| yes, 404 model_not_found `openai/another_model_404` |", "| yes, 404 model_not_found |"),
        ("| Metrics | no |", "| Metrics |"),
        ("ours, ", "our "),
    ],
)
def test_a_bogus_name_is_caught(real: str, bogus: str) -> None:
    """A check that cannot fail proves nothing."""
    assert real in TEXT
    assert matrix.faults(TEXT.replace(real, bogus, 1 if "ours" not in real else -1)) != []


@pytest.mark.wire
def test_the_script_says_what_is_wrong_and_make_check_runs_it(tmp_path: Path) -> None:
    """`make check` fails with it."""
    script = ROOT / "scripts" / "matrix.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    scratch = tmp_path / "scripts" / "matrix.py"
    for name in ("scripts", "docs"):
        (tmp_path / name).mkdir()
    scratch.write_text(script.read_text())
    (tmp_path / "docs" / "capability-matrix.md").write_text(
        "| A | ours, openai |\n| --- | --- |\n| B | yes `openai/x` |\n"
    )
    done = subprocess.run([sys.executable, str(scratch)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "docs/capability-matrix.md: line 3: B, openai: there is no case `openai/x`\n"
    (check,) = re.findall(r"^check:.*\n(?:\t.*\n)+", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert "scripts/matrix.py" in check


def always_runs(item: pytest.Item) -> bool:
    kinds = {mark.name for mark in item.iter_markers()}
    return bool(kinds & {"pure", "tiny", "wire"}) and not kinds & {"slow", "model"}


@pytest.mark.wire
def test_every_named_test_is_run_by_make_test(request: pytest.FixtureRequest) -> None:
    """Not slow, not skipped where a network or a model is missing, and of a kind that always runs. What this run
    has is asked first: to collect them again takes five seconds.
    """
    here = {item.nodeid.partition("[")[0] for item in request.session.items if always_runs(item)}
    if named_tests() <= here:
        return
    files = sorted({proof.partition("::")[0] for proof in named_tests()})
    kinds = "(pure or tiny or wire) and not slow and not model"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", kinds, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    collected = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    assert named_tests() - collected == set()


@pytest.mark.pure
def test_no_named_test_may_be_passed_over() -> None:
    names: dict[str, set[str]] = {}
    for proof in named_tests():
        file, _, name = proof.partition("::")
        names.setdefault(file, set()).add(name)
    marked = {}
    for file in names:
        source = (ROOT / file).read_text(encoding="utf-8")
        lines = source.splitlines()
        tests = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        assert names[file] <= {test.name for test in tests}, file
        for test in tests:
            marks = [line for node in test.decorator_list for line in lines[node.lineno - 1 : node.end_lineno]]
            if test.name in names[file] and (found := [line for line in marks if re.search(r"skip|xfail", line)]):
                marked[f"{file}::{test.name}"] = found
    assert marked == {}
