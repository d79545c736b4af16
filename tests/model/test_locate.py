"""What a `--model` value means, and the name it is then served under.

Thread: any
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed, ModelNotFound, UnknownFormat
from lattice_cli.model.card import ModelSource
from lattice_cli.model.catalog import CatalogEntry
from lattice_cli.model.locate import find_model, locate
from lattice_cli.settings import Home

pytestmark = pytest.mark.pure

NEITHER = "there is no such path, and it is not the name of a repository"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty models folder, the user's home and the working folder, all apart."""
    for name in ("models", "user", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path / "here")
    return Home(root=tmp_path, models=tmp_path / "models", offline=True)


def folder(path: Path, *files: str) -> Path:
    path.mkdir(parents=True)
    for name in files or ("config.json", "model.safetensors"):
        (path / name).write_bytes(b"")
    return path


class Puller:
    """Stands for the download: makes a folder and remembers what was asked."""

    def __init__(self, made: Path) -> None:
        self.made, self.asked = made, list[str]()

    def __call__(self, target: CatalogEntry | str) -> Path:
        self.asked.append(target if isinstance(target, str) else target.name)
        return folder(self.made, "Tiny.Q4_1.gguf")


def test_a_bare_name_is_looked_up_in_the_models_folder_first(home: Home, tmp_path: Path) -> None:
    """As the seeds do: what the user put there wins over the catalog and over the working folder."""
    here = folder(tmp_path / "here" / "mine")
    assert locate("mine", home) == ModelSource("mine", here, "folder")
    there = folder(home.models / "mine")
    assert locate("mine", home) == ModelSource("mine", there, "folder")
    own = folder(home.models / "qwen3.5-2b")
    assert locate("qwen3.5-2b", home) == ModelSource("qwen3.5-2b", own, "folder")


def test_a_catalog_name_whose_folder_holds_one_gguf_is_that_file(home: Home) -> None:
    path = folder(home.models / "smollm2-135m", "SmolLM2.Q4_1.gguf", ".lattice-pull.json")
    expected = ModelSource("smollm2-135m", path / "SmolLM2.Q4_1.gguf", "gguf")
    assert locate("smollm2-135m", home) == expected
    assert locate("SmolLM2-135M", home).path == expected.path


def test_a_catalog_name_that_is_not_here_is_pulled_only_where_pulling_is_allowed(home: Home, tmp_path: Path) -> None:
    """Report 142: nothing is downloaded unless the caller hands over the means."""
    with pytest.raises(ModelNotFound) as caught:
        locate("smollm2-135m", home)
    assert (caught.value.message, caught.value.hint) == (
        "`smollm2-135m` is not on this machine",
        "run `lattice pull smollm2-135m`",
    )
    puller = Puller(tmp_path / "pulled")
    found = locate("smollm2-135m", home, pull=puller)
    assert found == ModelSource("smollm2-135m", tmp_path / "pulled" / "Tiny.Q4_1.gguf", "gguf")
    assert puller.asked == ["smollm2-135m"]


def test_paths_are_absolute_relative_or_from_the_users_home(home: Home, tmp_path: Path) -> None:
    path = folder(tmp_path / "user" / "weights" / "mine")
    source = ModelSource("mine", path, "folder")
    assert locate(str(path), home) == source
    assert locate("~/weights/mine", home) == source
    assert locate("../user/weights/mine/", home) == source
    nested = folder(tmp_path / "here" / "a" / "b" / "c")
    assert locate("a/b/c", home) == ModelSource("c", nested, "folder")
    assert locate("./a/b/c/.", home) == ModelSource("c", nested, "folder")


def test_the_working_folder_itself_has_its_name(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "user" / "mine")
    monkeypatch.chdir(path)
    assert locate(".", home) == ModelSource("mine", path, "folder")


def test_a_name_with_a_final_slash_is_a_path_here(home: Home, tmp_path: Path) -> None:
    """As a shell completes it; the models folder is not meant."""
    folder(home.models / "mine")
    here = folder(tmp_path / "here" / "mine")
    assert locate("mine/", home) == ModelSource("mine", here, "folder")


def test_a_gguf_file_is_served_under_its_stem(home: Home, tmp_path: Path) -> None:
    folder(tmp_path / "here" / "files", "Tiny-1.5B.Q4_1.gguf", "Other.gguf")
    path = tmp_path / "here" / "files" / "Tiny-1.5B.Q4_1.gguf"
    assert locate("files/Tiny-1.5B.Q4_1.gguf", home) == ModelSource("Tiny-1.5B.Q4_1", path, "gguf")
    (home.models / "loose.gguf").write_bytes(b"")
    assert locate("loose.gguf", home) == ModelSource("loose", home.models / "loose.gguf", "gguf")


def test_a_link_keeps_its_own_name(home: Home, tmp_path: Path) -> None:
    path = folder(tmp_path / "blobs" / "3f2a")
    (home.models / "pretty").symlink_to(path)
    assert locate("pretty", home) == ModelSource("pretty", home.models / "pretty", "folder")


def test_a_local_path_wins_over_a_repository_of_that_form(home: Home, tmp_path: Path) -> None:
    pulled = folder(home.models / "org--repo")
    assert locate("org/repo", home) == ModelSource("org/repo", pulled, "folder")
    local = folder(tmp_path / "here" / "org" / "repo")
    assert locate("org/repo", home) == ModelSource("repo", local, "folder")


def test_a_repository_of_the_catalog_is_the_catalogs_folder(home: Home, tmp_path: Path) -> None:
    path = folder(home.models / "qwen3.5-0.8b")
    assert locate("Qwen/Qwen3.5-0.8B", home) == ModelSource("Qwen/Qwen3.5-0.8B", path, "folder")
    puller = Puller(tmp_path / "pulled")
    assert locate("org/other", home, pull=puller).served_id == "org/other"
    assert puller.asked == ["org/other"]
    with pytest.raises(ModelNotFound) as caught:
        locate("org/other", home)
    assert caught.value.hint == "run `lattice pull org/other`"


def test_a_script_is_served_under_its_own_name(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "here" / "replies.json"
    path.write_text(json.dumps({"name": "parrot", "replies": []}), encoding="utf-8")
    assert locate("script:replies.json", home) == ModelSource("parrot", path, "script")
    for text in ("{}", '{"name": 7}', "[]", "no JSON"):  # what is wrong with it, the engine says
        path.write_text(text, encoding="utf-8")
        assert locate(f"script:{path}", home) == ModelSource("replies", path, "script")
    with pytest.raises(ModelNotFound) as caught:
        locate("script:nothing.json", home)
    assert caught.value.message == (
        f"no scripted model `script:nothing.json`: `{tmp_path / 'here' / 'nothing.json'}` is not a file"
    )


def test_a_name_nobody_knows_is_one_sentence_with_the_nearest(home: Home) -> None:
    with pytest.raises(ModelNotFound) as caught:
        locate("smollm-135m", home)
    assert caught.value.message == (
        f"no model `smollm-135m`: looked for it in `{home.models}`, in the catalog and in this folder"
    )
    assert caught.value.hint == "did you mean `smollm2-135m`?"
    assert caught.value.exit_code == 3
    with pytest.raises(ModelNotFound) as caught:
        locate("zzz", home)
    assert caught.value.hint == (
        "give a name of the catalog (`smollm2-135m`, `qwen3.5-0.8b`, `qwen3.5-2b`, `qwen3.5-4b`), a folder, "
        "a `.gguf` file or an `org/repo`; see `lattice models`"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the model has no name"),
        ("  ", "the model has no name"),
        ("/no/such/folder", "`/no/such/folder` does not exist"),
        ("./nothing", "`nothing` does not exist"),
        ("a/b/c", f"no model `a/b/c`: {NEITHER}"),
        ("org/file.gguf", f"no model `org/file.gguf`: {NEITHER}"),
        ("https://hub.example/org/repo", f"no model `https://hub.example/org/repo`: {NEITHER}"),
    ],
)
def test_what_is_not_there_is_one_sentence(home: Home, name: str, message: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        locate(name, home, pull=Puller(home.root / "never"))
    assert caught.value.message == message
    assert not (home.root / "never").exists()


def test_what_an_interrupted_pull_left_is_no_model(home: Home) -> None:
    folder(home.models / ".partial")
    with pytest.raises(ModelNotFound):
        locate(".partial", home)


def test_a_file_that_is_no_model_names_its_folder(home: Home, tmp_path: Path) -> None:
    path = folder(tmp_path / "here" / "mine")
    with pytest.raises(UnknownFormat) as caught:
        locate("mine/config.json", home)
    assert caught.value.message == f"`{path / 'config.json'}` is a file, and of files only `.gguf` is a model"
    assert caught.value.hint == f"for a folder give `{path}`"


def test_no_name_means_the_default_and_offline_says_so(home: Home) -> None:
    with pytest.raises(FetchFailed) as caught:
        find_model(None, home)
    assert caught.value.message == "`smollm2-135m` is not here, and `LATTICE_OFFLINE` forbids downloading it"
    path = folder(home.models / "smollm2-135m", "SmolLM2.Q4_1.gguf")
    assert find_model(None, home) == ModelSource("smollm2-135m", path / "SmolLM2.Q4_1.gguf", "gguf")
