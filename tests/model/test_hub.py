"""Which files of a hub's repository make up a model, and every way the hub says no.

Thread: any
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import HubSource
from lattice_cli.model.connection import UNREACHABLE
from lattice_cli.model.hub import hub_model
from tests.model.stub_server import COMMIT, Answer, StubServer, serve_hub, stub_server

pytestmark = [pytest.mark.wire, pytest.mark.timeout(30)]

REPOSITORY = "org/tiny"
SIGN_IN = "a proxy or a sign-in page may have answered; `HF_ENDPOINT` names another hub"
API = f"/api/models/{REPOSITORY}/revision/main"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with stub_server() as server:
        yield server


def names(server: StubServer, *files: str) -> list[str]:
    """What is taken of a repository with these files."""
    serve_hub(server, REPOSITORY, dict.fromkeys(files, b"{}"))
    return list(hub_model(HubSource(REPOSITORY), server.url).links)


def test_weights_configuration_and_tokenizer_are_taken_and_no_code(server: StubServer) -> None:
    """Report 143: a repository's Python is not even downloaded; nor are a second copy of the weights,
    other frameworks' files, folders.
    """
    wanted = [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer.model",
        "merges.txt",
        "chat_template.jinja",
        "LICENSE",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    unwanted = [
        "modeling_custom.py",
        "consolidated.safetensors",
        "pytorch_model.bin",
        "model.gguf",
        "onnx/model.onnx",
        "original/model.safetensors",
        ".gitattributes",
        "picture.png",
    ]
    assert sorted(names(server, *wanted, *unwanted)) == sorted(wanted)


def test_a_lone_gguf_file_is_taken_and_of_several_none(server: StubServer) -> None:
    assert names(server, "README.md", "Tiny.Q4_1.gguf") == ["README.md", "Tiny.Q4_1.gguf"]
    with pytest.raises(FetchFailed) as caught:
        names(server, "Tiny.Q4_1.gguf", "Tiny.Q8_0.gguf")
    assert caught.value.message == (
        "`org/tiny` holds 2 GGUF files and no safetensors, so it is not clear which is meant"
    )
    with pytest.raises(FetchFailed) as caught:
        names(server, "config.json", "pytorch_model.bin")
    assert caught.value.message == "`org/tiny` holds neither `model*.safetensors` nor a GGUF file"


def test_links_carry_commit_checksum_and_token(server: StubServer) -> None:
    serve_hub(server, REPOSITORY, {"config.json": b"{}", "model.safetensors": bytes(2000)}, token="Bearer hf_secret")
    model = hub_model(HubSource(REPOSITORY), server.url)
    host = server.url.removeprefix("http://")
    assert (model.host, model.commit, model.licence, model.nbytes) == (host, COMMIT, "mit", 2002)
    config, weights = model.links["config.json"], model.links["model.safetensors"]
    assert config.url == f"{server.url}/org/tiny/resolve/{COMMIT}/config.json"
    assert config.checksum == "git-sha1:9e26dfeeb6e641a33dae4961196235bdb965b21b"  # git hash-object of `{}`
    assert weights.checksum == "sha256:2da42fb1d7bd8524e83d5a1e332bad697c8769ba430770a19bec630eb8ffcaa8"
    assert config.headers == weights.headers == (("authorization", "Bearer hf_secret"),)


@pytest.mark.parametrize(
    ("answer", "message", "hint"),
    [
        (
            Answer(status=404, headers={"X-Error-Code": "RepoNotFound"}),
            "`HOST` has no `org/tiny`, or it is private",
            "check the name; a private repository needs `HF_TOKEN`",
        ),
        (
            Answer(status=401),
            "`HOST` refused `org/tiny`: 401 Unauthorized",
            "check `HF_TOKEN`",
        ),
        (
            Answer(status=403, headers={"X-Error-Code": "GatedRepo"}),
            "`org/tiny` is gated, and `HOST` did not let us in",
            "accept its terms on http://HOST/org/tiny, then set `HF_TOKEN`",
        ),
        (Answer(status=503), "`HOST` refused `org/tiny`: 503 Service Unavailable", None),
        (Answer(status=404), "`HOST` refused `org/tiny`: 404 Not Found", None),
        (Answer(b"<html>a captive portal</html>", kind="text/html"), "`HOST` did not answer as a hub does", SIGN_IN),
        (Answer(b"[]", kind="application/json"), "`HOST` did not answer as a hub does", SIGN_IN),
    ],
)
def test_every_no_of_the_hub_is_one_sentence(
    server: StubServer, answer: Answer, message: str, hint: str | None
) -> None:
    host = server.url.removeprefix("http://")
    server.answers[API] = [answer]
    with pytest.raises(FetchFailed) as caught:
        hub_model(HubSource(REPOSITORY), server.url)
    assert caught.value.message == message.replace("HOST", host)
    assert caught.value.hint == (hint.replace("HOST", host) if hint else None)
    assert caught.value.exit_code == 3


def test_no_hub_at_all_is_told_apart() -> None:
    with stub_server() as gone:
        url = gone.url
    with pytest.raises(FetchFailed) as caught:
        hub_model(HubSource(REPOSITORY), url)
    host = url.removeprefix("http://")
    assert caught.value.message == f"`{host}` could not be reached: Connection refused"
    assert caught.value.code == UNREACHABLE
