"""`lattice pull`: names, sentences, exit statuses.

Thread: any
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed, ModelNotFound
from lattice_cli.manage.pull import pull
from lattice_cli.model.pulled import Pull, PulledFile, write_marker
from lattice_cli.settings import Home

pytestmark = pytest.mark.pure


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, models=tmp_path / "models", offline=True)


def test_a_model_that_is_here_is_said_to_be_here(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home.models / "smollm2-135m"
    folder.mkdir(parents=True)
    (folder / "x.gguf").write_bytes(b"GGUF")
    files = (PulledFile("x.gguf", 4, "00"),)
    write_marker(folder, Pull("smollm2-135m", "index:x", "1", None, files, "2026-01-02T03:04:05+00:00"))
    assert pull("smollm2-135m", home) == folder
    assert capsys.readouterr() == ("", f"`smollm2-135m` was already in `{folder}`\n")


@pytest.mark.parametrize("name", ["smollm2-135m", "org/repo"])
def test_offline_is_one_sentence_with_exit_status_3(home: Home, name: str) -> None:
    with pytest.raises(FetchFailed) as caught:
        pull(name, home)
    assert caught.value.message == f"`{name}` is not here, and `LATTICE_OFFLINE` forbids downloading it"
    assert caught.value.hint == f"unset `LATTICE_OFFLINE` and run `lattice pull {name}`"
    assert caught.value.exit_code == 3


def test_a_name_that_cannot_be_pulled_names_the_nearest(home: Home) -> None:
    with pytest.raises(ModelNotFound) as caught:
        pull("qwen3.5-0.8", home)
    assert caught.value.message == "`qwen3.5-0.8` is neither a name of the catalog nor an `org/repo`"
    assert caught.value.hint == "did you mean `qwen3.5-0.8b`?"
