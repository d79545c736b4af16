"""One file over HTTP: resumed, verified, renamed; every way a server can let us down.

Thread: any
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice_cli.errors import FetchFailed
from lattice_cli.model.connection import UNREACHABLE, Link
from lattice_cli.model.download import download
from tests.model.stub_server import Answer, StubServer, stub_server

pytestmark = [pytest.mark.wire, pytest.mark.timeout(30)]

BODY = bytes(range(256)) * 4000  # 1,024,000 bytes


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with stub_server() as server:
        yield server


def link(server: StubServer, path: str = "/file", body: bytes = BODY, nbytes: int | None = None) -> Link:
    checksum = f"sha256:{hashlib.sha256(body).hexdigest()}"
    return Link(server.url + path, len(body) if nbytes is None else nbytes, checksum, refused_hint="ask nicely")


def no_pause(seconds: float) -> None:
    return


def fetch_to(folder: Path, wanted: Link) -> list[int]:
    """Download into `folder/target`; gives what progress was told."""
    told: list[int] = []
    download(wanted, folder / "target", folder / "target.part", told.append, no_pause)
    return told


def test_a_file_arrives_whole_and_its_part_file_is_gone(server: StubServer, tmp_path: Path) -> None:
    server.answers["/file"] = [Answer(BODY)]
    told = fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (told[0], told[-1]) == (0, len(BODY))
    assert told == sorted(told)


def test_a_dropped_connection_is_resumed_by_range(server: StubServer, tmp_path: Path) -> None:
    server.answers["/file"] = [Answer(BODY, cut_at=300_000), Answer(BODY, cut_at=400_000), Answer(BODY)]
    fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY
    assert server.asked("/file") == [None, "bytes=300000-", "bytes=700000-"]


def test_a_part_file_of_an_earlier_attempt_is_resumed(server: StubServer, tmp_path: Path) -> None:
    (tmp_path / "target.part").write_bytes(BODY[:123_456])
    server.answers["/file"] = [Answer(BODY)]
    told = fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY
    assert server.asked("/file") == ["bytes=123456-"]
    assert told[0] == 123_456


def test_a_whole_part_file_needs_no_request(server: StubServer, tmp_path: Path) -> None:
    (tmp_path / "target.part").write_bytes(BODY)
    fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY
    assert server.log == []


def test_a_server_without_ranges_starts_over(server: StubServer, tmp_path: Path) -> None:
    (tmp_path / "target.part").write_bytes(BODY[:1000])
    server.answers["/file"] = [Answer(BODY, ranges=False)]
    fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 1)])
def test_a_stale_part_file_costs_one_fresh_download(server: StubServer, tmp_path: Path, stale: bytes) -> None:
    """Resumed onto other bytes, the sum is wrong once; the second try begins at zero."""
    (tmp_path / "target.part").write_bytes(stale)
    server.answers["/file"] = [Answer(BODY)]
    fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing_behind(server: StubServer, tmp_path: Path) -> None:
    server.answers["/file"] = [Answer(BODY[::-1])]
    with pytest.raises(FetchFailed) as caught:
        fetch_to(tmp_path, link(server))
    host = server.url.removeprefix("http://")
    assert caught.value.message == f"`target` from `{host}` does not match its checksum, so it was thrown away"
    assert list(tmp_path.iterdir()) == []
    assert caught.value.exit_code == 3


def test_another_size_is_told_before_the_bytes_are_taken(server: StubServer, tmp_path: Path) -> None:
    """A short file must not be asked for again and again: a range past its end would start it over."""
    server.answers["/file"] = [Answer(BODY[:1000])]
    with pytest.raises(FetchFailed) as caught:
        fetch_to(tmp_path, link(server))
    assert caught.value.message == (
        f"`{server.url.removeprefix('http://')}` offers `file` with 1000 bytes instead of 1024000"
    )
    assert len(server.log) == 1


@pytest.mark.parametrize(
    ("status", "phrase"), [(401, "Unauthorized"), (403, "Forbidden"), (404, "Not Found"), (410, "Gone")]
)
def test_a_refusal_is_one_sentence_at_once(server: StubServer, tmp_path: Path, status: int, phrase: str) -> None:
    server.answers["/file"] = [Answer(status=status)]
    with pytest.raises(FetchFailed) as caught:
        fetch_to(tmp_path, link(server))
    assert caught.value.message == f"`{server.url.removeprefix('http://')}` refused `file`: {status} {phrase}"
    assert caught.value.hint == "ask nicely"
    assert len(server.log) == 1


def test_a_busy_server_is_asked_again(server: StubServer, tmp_path: Path) -> None:
    server.answers["/file"] = [Answer(status=503), Answer(status=429), Answer(BODY)]
    fetch_to(tmp_path, link(server))
    assert (tmp_path / "target").read_bytes() == BODY


def test_a_server_that_stays_busy_is_given_up_and_what_arrived_is_kept(server: StubServer, tmp_path: Path) -> None:
    pauses: list[float] = []
    server.answers["/file"] = [Answer(BODY, cut_at=300_000), Answer(status=503)]
    with pytest.raises(FetchFailed) as caught:
        download(link(server), tmp_path / "target", tmp_path / "target.part", pause=pauses.append)
    host = server.url.removeprefix("http://")
    assert caught.value.message == f"`{host}` could not be reached: 503 Service Unavailable"
    assert caught.value.code == UNREACHABLE
    assert (tmp_path / "target.part").read_bytes() == BODY[:300_000]
    assert pauses == [0.25, 0.5, 1.0, 2.0]


def test_nobody_listening_is_one_sentence(tmp_path: Path) -> None:
    with stub_server() as gone:
        wanted = link(gone)
    with pytest.raises(FetchFailed) as caught:
        fetch_to(tmp_path, wanted)
    assert caught.value.message == f"`{wanted.host}` could not be reached: Connection refused"


def test_a_full_disk_is_not_taken_for_the_network(server: StubServer, tmp_path: Path) -> None:
    """/dev/full takes no byte: the sentence names the file, and nobody is asked four times."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "target.part").symlink_to(full)
    server.answers["/file"] = [Answer(BODY)]
    with pytest.raises((FetchFailed, OSError)) as caught:
        fetch_to(tmp_path, link(server))
    assert "No space left on device" in str(caught.value)
    assert len(server.log) == 1


def test_a_token_is_not_carried_to_another_host(server: StubServer, tmp_path: Path) -> None:
    """The hub sends large files on to a store of another host, which must not learn our token."""
    with stub_server() as store:
        store.answers["/blob"] = [Answer(BODY)]
        server.answers["/file"] = [Answer(status=302, headers={"Location": "/moved"})]
        server.answers["/moved"] = [Answer(status=307, headers={"Location": f"{store.url}/blob"})]
        wanted = link(server)
        wanted = Link(wanted.url, wanted.nbytes, wanted.checksum, headers=(("Authorization", "Bearer secret"),))
        fetch_to(tmp_path, wanted)
        assert [request.authorization for request in server.log] == ["Bearer secret", "Bearer secret"]
        assert [request.authorization for request in store.log] == [None]


def test_the_size_may_be_unknown(server: StubServer, tmp_path: Path) -> None:
    server.answers["/file"] = [Answer(BODY, cut_at=300_000), Answer(BODY)]
    download(Link(f"{server.url}/file"), tmp_path / "target", tmp_path / "part", pause=no_pause)
    assert (tmp_path / "target").read_bytes() == BODY


def test_a_local_file_is_copied_and_checked(tmp_path: Path) -> None:
    """pip may resolve to a wheel on disk: `find-links`, a `file://` index."""
    (tmp_path / "a file").write_bytes(BODY)
    (tmp_path / "target.part").write_bytes(BODY[:1000])
    wanted = Link((tmp_path / "a file").as_uri(), len(BODY), f"sha256:{hashlib.sha256(BODY).hexdigest()}")
    fetch_to(tmp_path, wanted)
    assert (tmp_path / "target").read_bytes() == BODY
    missing = Link((tmp_path / "nothing").as_uri(), len(BODY))
    with pytest.raises(FetchFailed) as caught:
        download(missing, tmp_path / "other", tmp_path / "other.part", pause=no_pause)
    assert caught.value.message == f"`{tmp_path / 'nothing'}` is not there"


def test_a_git_blob_checksum_is_checked(server: StubServer, tmp_path: Path) -> None:
    blob = hashlib.sha1(b"blob %d\0" % len(BODY) + BODY).hexdigest()
    server.answers["/file"] = [Answer(BODY)]
    fetch_to(tmp_path, Link(f"{server.url}/file", len(BODY), f"git-sha1:{blob}"))
    assert (tmp_path / "target").read_bytes() == BODY


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    """Not told as a network that is down, nor as a file of the server that is missing."""
    bundle = tmp_path / "company.pem"
    if content is not None:
        bundle.write_text(content)
    with pytest.raises(FetchFailed) as caught:
        fetch_to(tmp_path, Link("https://127.0.0.1:9/file", ca_bundle=str(bundle)))
    assert caught.value.message.startswith(f"the certificates in `{bundle}` cannot be read: ")
    assert caught.value.hint == "`REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, `PIP_CERT` or pip's `cert` names that file"
