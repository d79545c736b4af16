"""`lattice models`: a table for people, JSON for programs, and a removal that asks.

Thread: any
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lattice_cli.errors import ModelError, ModelNotFound, UsageError
from lattice_cli.manage.models import models_app, models_list, models_rm
from lattice_cli.model.pulled import Pull, PulledFile, write_marker
from lattice_cli.settings import Home
from tests.tiny import write_tiny_folder

pytestmark = pytest.mark.pure


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, models=tmp_path / "models", offline=True)


def pulled(home: Home, folder_name: str, name: str, licence: str | None = "mit") -> Path:
    """A tiny model as a pull leaves it."""
    folder = write_tiny_folder(home.models / folder_name)
    files = tuple(PulledFile(path.name, path.stat().st_size, "00") for path in sorted(folder.iterdir()))
    write_marker(folder, Pull(name, f"hub:{name}", "0123", licence, files, "2026-01-02T03:04:05+00:00"))
    return folder


def weights_bytes(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


def test_nothing_here_shows_what_the_catalog_offers(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    models_list(home)
    assert capsys.readouterr() == (
        "name          format     size     context  licence     where\n"
        "smollm2-135m  gguf Q4_1  98.4 MB  8192     Apache-2.0  lattice pull smollm2-135m\n"
        "qwen3.5-0.8b  hf         1.8 GB   262144   Apache-2.0  lattice pull qwen3.5-0.8b\n"
        "qwen3.5-2b    hf         4.6 GB   262144   Apache-2.0  lattice pull qwen3.5-2b\n"
        "qwen3.5-4b    hf         9.3 GB   262144   Apache-2.0  lattice pull qwen3.5-4b\n",
        "",
    )


def test_the_table_names_what_is_here_then_what_is_not(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pulled, one's own, unreadable; hidden folders and stray files are no models."""
    monkeypatch.setenv("HOME", str(tmp_path))
    repository = pulled(home, "org--tiny", "org/tiny")
    pulled(home, "qwen3.5-2b", "qwen3.5-2b", "Apache-2.0")
    write_tiny_folder(home.models / "mine")
    (home.models / "empty").mkdir()
    (home.models / "notes.txt").write_text("not a model")
    partial = home.models / ".partial" / "smollm2-135m" / "0.1.2"
    partial.mkdir(parents=True)
    (partial / "x.whl.part").write_bytes(bytes(31_000))
    models_list(home)
    size = f"{weights_bytes(repository) / 1000:.0f} kB"
    out, err = capsys.readouterr()
    assert [line.split(maxsplit=1) for line in out.splitlines()[1:5]] == [
        ["empty", "unreadable  0 kB     ?        ?           ~/models/empty"],
        ["mine", f"hf          {size}   512      ?           ~/models/mine"],
        ["org/tiny", f"hf          {size}   512      mit         ~/models/org--tiny"],
        ["qwen3.5-2b", f"hf          {size}   512      Apache-2.0  ~/models/qwen3.5-2b"],
    ]
    assert [line.split()[0] for line in out.splitlines()[5:]] == ["smollm2-135m", "qwen3.5-0.8b", "qwen3.5-4b"]
    assert out.splitlines()[5].endswith("lattice pull smollm2-135m (31 kB are here)")
    assert err == (
        f"empty: `{home.models / 'empty'}` is not a model folder: looked for `model.safetensors`, "
        "`model.safetensors.index.json`, `model*.safetensors`, `*.q4` and one `.gguf` file\n"
    )


def test_json_gives_programs_numbers(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pulled(home, "org--tiny", "org/tiny")
    models_list(home, as_json=True)
    out, err = capsys.readouterr()
    first, second = json.loads(out)[:2]
    assert first == {
        "name": "org/tiny",
        "format": "hf",
        "quantization": "none",
        "architecture": "llama",
        "size_bytes": weights_bytes(folder),
        "context_tokens": 512,
        "licence": "mit",
        "path": str(folder),
        "pulled": True,
        "partial_bytes": 0,
        "problem": None,
    }
    assert second == {
        "name": "smollm2-135m",
        "format": "gguf",
        "quantization": "Q4_1",
        "architecture": None,
        "size_bytes": 98_362_432,
        "context_tokens": 8192,
        "licence": "Apache-2.0",
        "path": None,
        "pulled": False,
        "partial_bytes": 0,
        "problem": None,
    }
    assert err == ""


# Removing.


def test_a_pulled_model_is_removed_under_the_name_it_is_listed_by(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    pulled(home, "org--tiny", "org/tiny")
    pulled(home, "qwen3.5-2b", "qwen3.5-2b")
    models_rm("org/tiny", home, yes=True)
    models_rm("QWEN3.5-2B", home, yes=True)
    assert [path.name for path in home.models.iterdir()] == [".partial"]
    assert capsys.readouterr() == ("", "removed `org/tiny`\nremoved `QWEN3.5-2B`\n")


def test_what_an_interrupted_pull_left_is_removed(home: Home) -> None:
    area = home.models / ".partial" / "smollm2-135m"
    area.mkdir(parents=True)
    (area / "x.part").write_bytes(b"x")
    models_rm("smollm2-135m", home, yes=True)
    assert not area.exists()


def test_files_that_somebody_added_are_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pulled(home, "tiny", "tiny")
    (folder / "adapter.safetensors").write_bytes(b"mine")
    models_rm("tiny", home, yes=True)
    assert capsys.readouterr().err == (
        f"removed `tiny`\n`{folder}` stays, with what lattice did not put there: adapter.safetensors\n"
    )


def test_a_model_that_lattice_did_not_pull_stays(home: Home) -> None:
    """Rust Lattice's models and one's own."""
    folder = write_tiny_folder(home.models / "mine")
    with pytest.raises(ModelError) as caught:
        models_rm("mine", home, yes=True)
    assert caught.value.message == f"`{folder}` was not pulled by lattice, so it is left as it is"
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["nothing", "org/nothing", "..", ".", "", ".partial", "../models/mine", "/", "a/b/c"])
def test_a_name_that_is_not_here_removes_nothing(home: Home, name: str) -> None:
    """No name climbs out of the models folder."""
    write_tiny_folder(home.models / "mine")
    (home.models / ".partial").mkdir()
    with pytest.raises(ModelNotFound) as caught:
        models_rm(name, home, yes=True)
    assert caught.value.message == f"no model `{name}` in `{home.models}`"
    assert sorted(path.name for path in home.models.iterdir()) == [".partial", "mine"]


def test_without_a_terminal_to_ask_at_it_needs_yes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pulled(home, "tiny", "tiny")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError) as caught:
        models_rm("tiny", home)
    assert caught.value.hint == "add `--yes` to remove without asking"
    assert folder.exists()


def test_the_command_lists_and_removes(home: Home) -> None:
    pulled(home, "tiny", "tiny")
    runner = CliRunner(env={"LATTICE_HOME": str(home.root), "LATTICE_MODEL_CACHE": ""})
    listed = runner.invoke(models_app, ["--json"])
    assert json.loads(listed.stdout)[0]["name"] == "tiny"
    removed = runner.invoke(models_app, ["rm", "tiny", "--yes"])
    assert (removed.exit_code, removed.stderr) == (0, "removed `tiny`\n")
