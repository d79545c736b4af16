"""`/model`: another model in the middle of a talk, of this machine; a failure keeps the old one.

Thread: any
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.keeping import Keeping
from lattice_cli.chat.opening import Loader
from lattice_cli.chat.restoring import from_anywhere
from lattice_cli.chat.store import Store
from lattice_cli.engine.worker import EngineWorker, State
from lattice_cli.errors import LatticeError, ModelNotFound
from lattice_cli.model.locate import locate
from lattice_cli.settings import EngineSettings, Home
from tests.chat.desk import heard
from tests.chat.terminal import script
from tests.tiny import write_tiny_folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path, tmp_path / "models", offline=True, kernels="off")


def opened(home: Home, model: str) -> tuple[Talk, Store]:
    loader = Loader(home, EngineSettings(max_rows=1), quiet=True)
    source = locate(model, home)
    store = Store(home.sessions)
    return Talk(loader.partner(loader.start(source), source), keeping=Keeping(store, model=model)), store


def bot(folder: Path, name: str, answer: str) -> str:
    (folder / name).mkdir(parents=True)
    return script(folder / name, {"tokens": [answer]}, name=name)


def worker(talk: Talk) -> EngineWorker:
    return talk.partner.worker  # type: ignore[attr-defined, no-any-return]


@pytest.mark.pure
def test_another_model_answers_and_the_talk_stays(tmp_path: Path, home: Home) -> None:
    one, two = bot(tmp_path, "one", "1"), bot(tmp_path, "two", "2")
    talk, store = opened(home, one)
    heard(talk, talk.ask("Hi"))
    old = worker(talk)
    assert talk.model(two) == "`two` answers from here on, 4,096 tokens of context; the conversation stays"
    assert old.state is State.STOPPED
    heard(talk, talk.ask("And you?"))
    assert [turn.text for turn in talk.session.turns] == ["Hi", "1", "And you?", "2"]
    saved = store.latest()
    assert saved is not None and saved.model == two  # so `--continue` goes on with it
    assert talk.model(two) == "`two` answers already"
    assert worker(talk).stop(10)


@pytest.mark.pure
def test_a_name_that_is_nowhere_changes_nothing(tmp_path: Path, home: Home) -> None:
    """A slip of the finger does not cost the loaded model, and nothing is downloaded in the middle of a talk."""
    talk, _ = opened(home, bot(tmp_path, "one", "1"))
    before = worker(talk)
    for name, hint in (("nonsense", "catalog"), ("qwen3.5-0.8b", "lattice pull qwen3.5-0.8b")):
        with pytest.raises(ModelNotFound) as missing:
            talk.model(name)
        assert hint in (missing.value.hint or "")
    assert worker(talk) is before
    heard(talk, talk.ask("Hi"))
    assert talk.session.turns[-1].text == "1"
    assert before.stop(10)


@pytest.mark.pure
def test_a_model_that_cannot_be_loaded_brings_the_old_one_back(tmp_path: Path, home: Home) -> None:
    talk, _ = opened(home, bot(tmp_path, "one", "1"))
    heard(talk, talk.ask("Hi"))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(LatticeError, match=r"is malformed: .*; `one` stays"):
        talk.model(f"script:{broken}")
    heard(talk, talk.ask("Still there?"))
    assert [turn.text for turn in talk.session.turns] == ["Hi", "1", "Still there?", "1"]
    assert worker(talk).stop(10)


@pytest.mark.tiny
def test_networks_follow_one_another_in_one_process(tmp_path: Path, home: Home) -> None:
    """A thread that used mlx has to give it back before the next one begins."""
    first = write_tiny_folder(home.models / "llama", "llama")
    write_tiny_folder(home.models / "org--qwen", "qwen3_5")
    talk, _ = opened(home, str(first))
    talk.set("max_tokens", "8")
    talk.set("temperature", "0")
    assert talk.models() == ["llama", "org/qwen"]
    texts = []
    for name in (None, "org/qwen", "llama"):
        if name:
            talk.model(name)
        completion, _ = heard(talk, talk.ask("Hi"))
        assert completion.finished is not None, completion.failed
        texts.append(completion.answer)
        talk.reset()
    assert texts[0] == texts[2] != texts[1]
    assert worker(talk).stop(10)


@pytest.mark.pure
def test_a_path_is_remembered_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--continue` in another folder finds the same model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert from_anywhere("script:bot.json") == f"script:{tmp_path}/bot.json"
    assert from_anywhere("./a") == f"{tmp_path}/a"
    assert from_anywhere("a/b") == f"{tmp_path}/a/b"
    assert from_anywhere("org/repo") == "org/repo"
    assert from_anywhere("smollm2-135m") == "smollm2-135m"
    assert from_anywhere(None) is None
