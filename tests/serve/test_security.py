"""Who may ask, over real sockets: keys, names, origins, a socket at a path; and what a request never makes us do.

Thread: any
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from lattice_cli.errors import LatticeError
from lattice_cli.serve.access import Access
from lattice_cli.serve.hosts import hosts_of
from lattice_cli.serve.sockets import listen_at
from tests.serve.process import Process
from tests.serve.stage import LIMIT_S, PATH, REPLIES, Raw, Served, body, served, stage, with_settings, write_script

pytestmark = pytest.mark.wire

KEY = "sk-lattice-1234567890"
BEARER = {"Authorization": f"Bearer {KEY}"}
PAGE = "http://localhost:3000"
ASKED = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    access = Access(hosts_of("127.0.0.1", "127.0.0.1"), (KEY, "sk-second"), (PAGE,))
    with served(settings=with_settings(max_body_bytes=1 << 20), access=access) as one:
        yield one


def refused(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json"
    assert sorted(answer.json()["error"]) == ["code", "message", "param", "type"]
    return answer.status_code, answer.json()["error"]["code"]


# Keys.


@pytest.mark.parametrize("key", [None, "x", "sk-lattice", "sk-lattice-12345678901", "ключ".encode()])
def test_no_key_and_a_wrong_key_are_401_on_every_path_but_health(locked: Served, key: Any) -> None:
    sent = {} if key is None else {"Authorization": b"Bearer " + (key if isinstance(key, bytes) else key.encode())}
    with locked.client() as client:
        for method, path in (
            ("POST", PATH),
            ("POST", "/v1/completions"),
            ("POST", "/tokenize"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/echo"),
            ("GET", "/metrics"),
            ("HEAD", "/metrics"),
            ("GET", "/"),
            ("GET", "/nowhere"),
            ("DELETE", "/v1/models"),
            ("OPTIONS", PATH),
        ):
            answer = client.request(method, path, headers=sent, json=body() if method == "POST" else None)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == 'Bearer realm="lattice"'
            if method != "HEAD":
                assert refused(answer) == (401, "invalid_api_key")
        assert client.get("/health", headers=sent).json() == {"status": "ok"}


def test_the_openai_client_meets_a_wrong_key_as_its_own_error(locked: Served) -> None:
    def asked(key: str) -> str | None:
        with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0) as one:
            said: list[Any] = [{"role": "user", "content": "hi"}]
            return one.chat.completions.create(model="", messages=said).choices[0].message.content

    assert asked(KEY) == asked("sk-second") == "hello world"
    with pytest.raises(openai.AuthenticationError) as caught:
        asked("sk-other")
    assert caught.value.code == "invalid_api_key"


def test_a_strangers_body_is_not_read(locked: Served) -> None:
    """It would lie on disk until its end, only to be refused; nor is a stranger told that it is too large."""
    for framing in ("Content-Length: 1000000", "Content-Length: 99000000", "Transfer-Encoding: chunked"):
        with locked.raw() as client:
            head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"
            answer = client.send(head.encode()).rest()
            assert answer.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
            assert b'\r\nwww-authenticate: bearer realm="lattice"\r\n' in answer.lower()
            assert b"100 Continue" not in answer and b'"code": "invalid_api_key"' in answer


@pytest.mark.parametrize("policy", ["lattice-0.6.1", "lattice-0.5.0"])
def test_a_refusal_is_in_the_words_of_the_policy(policy: str) -> None:
    from lattice_cli.policy import POLICIES

    settings = with_settings(policy=POLICIES[policy])
    with served(settings=settings, access=Access(keys=(KEY,))) as house, house.client() as client:
        answer = client.post(PATH, json=body())
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="lattice"')
        wanted = ["code", "message", "param", "type"] if policy == "lattice-0.6.1" else ["message", "type"]
        assert sorted(answer.json()["error"]) == wanted
        assert client.post(PATH, json=body(), headers=BEARER).status_code == 200


# Names.


def test_a_request_for_another_host_is_403(locked: Served) -> None:
    """DNS rebinding, with the right key too."""
    with locked.client() as client:
        for host in ("evil.example", f"evil.example:{locked.port}", "127.0.0.1.evil.example"):
            answer = client.get("/v1/models", headers={**BEARER, "Host": host})
            assert refused(answer) == (403, "host_not_allowed")
        for host in (f"localhost:{locked.port}", "127.0.0.1"):
            assert client.get("/v1/models", headers={**BEARER, "Host": host}).status_code == 200


def test_two_hosts_in_one_request_are_none_of_ours(locked: Served) -> None:
    with locked.raw() as client:
        told = client.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n").until(b"}}\n")
        assert told.startswith(b"HTTP/1.1 403 ")


def test_the_process_listens_on_loopback_and_takes_names_that_it_is_told(tmp_path: Path) -> None:
    script = f"script:{write_script(tmp_path, REPLIES)}"
    for arguments, status in (([], 403), (["--allow-host", "proxy.example"], 200), (["--allow-host", "*"], 200)):
        with Process(tmp_path, "--model", script, "--port", "0", *arguments) as process:
            port = process.port()
            with process.client(port) as client:
                assert client.get("/health", headers={"Host": "proxy.example"}).status_code == status
            others = [info[4][0] for info in socket.getaddrinfo(socket.gethostname(), port, socket.AF_INET)]
            for address in others:
                if not address.startswith("127."):
                    with pytest.raises(OSError):
                        socket.create_connection((address, port), timeout=2)
            assert process.signal(signal.SIGTERM).ended() == 0


def test_an_open_address_without_a_key_is_told(tmp_path: Path) -> None:
    script = f"script:{write_script(tmp_path, REPLIES)}"
    note = "note: whoever can reach 0.0.0.0 may use this server; `--api-key` asks for a key\n"
    for environment, told in (({}, True), ({"LATTICE_API_KEY": KEY}, False)):
        with Process(tmp_path, "--model", script, "--port", "0", "--host", "0.0.0.0", **environment) as process:
            port = process.port()
            with process.client(port) as client:
                assert client.get("/v1/models").status_code == (200 if told else 401)
            assert process.signal(signal.SIGTERM).ended() == 0
        assert (note in process.talk()) is told


# Pages of other origins. Report 145.


def test_a_preflight_is_answered_without_a_key(locked: Served) -> None:
    """Report 145: 405 or 401."""
    with locked.client() as client:
        answer = client.options(PATH, headers=ASKED)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["vary"] == "Origin"
        assert client.options("/nowhere", headers=ASKED).status_code == 204
        other = client.options(PATH, headers={**ASKED, "Origin": "http://evil.example"})
        assert other.status_code == 401
        assert "access-control-allow-origin" not in other.headers


def test_refusals_and_streams_carry_the_headers_too(locked: Served) -> None:
    """Report 145: error replies lacked the headers, so the page saw only a network failure."""
    page = {**BEARER, "Origin": PAGE}
    with locked.client() as client:
        answers = [
            client.post(PATH, json=body(), headers={"Origin": PAGE, "Authorization": "Bearer wrong"}),
            client.post(PATH, json=body(), headers=page),
            client.post(PATH, json=body(stream=True), headers=page),
            client.post(PATH, json=body(temperature=9), headers=page),
            client.post(PATH, json=body("raise"), headers=page),
            client.get("/nowhere", headers=page),
            client.request("BREW", "/", headers=page),
            client.post(PATH, content=b"x" * (2 << 20), headers=page),
        ]
    assert [one.status_code for one in answers] == [401, 200, 200, 400, 500, 404, 400, 413]
    for one in answers:
        assert one.headers["access-control-allow-origin"] == PAGE
        assert "X-Request-Id" in one.headers["access-control-expose-headers"]


def test_without_the_option_no_page_may_read_anything() -> None:
    with served() as house, house.client() as client:
        answer = client.options(PATH, headers=ASKED)
        assert not [name for name in answer.headers if name.startswith("access-control")]
        answer = client.post(PATH, json=body(), headers={"Origin": PAGE})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        # What a page may send without asking is not taken.
        simple = client.post(PATH, content=json.dumps(body()), headers={"Origin": PAGE, "Content-Type": "text/plain"})
        assert simple.status_code == 415


def test_all_origins_may_read_but_bring_no_credentials() -> None:
    with served(access=Access(origins=("*",))) as house, house.client() as client:
        answer = client.post(PATH, json=body(), headers={"Origin": "http://any.example"})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", ""],
        ["--api-key", "a b"],
        ["--cors-origin", "localhost:3000"],
        ["--cors-origin", "http://localhost:3000/"],
        ["--unix-socket", "lattice.sock", "--host", "127.0.0.1"],
        ["--unix-socket", "lattice.sock", "--port", "0"],
        ["--unix-socket", "lattice.sock", "--allow-host", "a"],
        ["--host", ""],
        ["--alias", " "],
        ["--no-prefix-cache", "--cache-dir", "kept"],
        ["--no-prefix-cache", "--cache-bytes", "1G"],
        ["--cache-bytes", "0", "--cache-dir", "kept"],
    ],
)
def test_options_that_cannot_be_are_usage_errors(tmp_path: Path, arguments: list[str]) -> None:
    from lattice_cli.cli import run

    script = f"script:{write_script(tmp_path, REPLIES)}"
    assert run(["serve", "--model", script, *([] if "--port" in arguments else ["--port", "0"]), *arguments]) == 2


def test_an_empty_variable_for_keys_does_not_open_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lattice_cli.cli import run

    monkeypatch.setenv("LATTICE_API_KEY", "")
    script = f"script:{write_script(tmp_path, REPLIES)}"
    assert run(["serve", "--model", script, "--port", "0"]) == 2
    assert "`LATTICE_API_KEY` is set and holds no key" in capsys.readouterr().err


# A socket at a path.


class AtPath:
    """HTTP to a socket at a path."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))

    def ask(self, said: dict[str, Any]) -> bytes:
        data = json.dumps(said).encode()
        self.socket.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n"
            f"Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        told = b""
        while part := self.socket.recv(65536):
            told += part
        self.socket.close()
        return told


def test_a_socket_at_a_path_is_private_and_gone_at_the_end(tmp_path: Path) -> None:
    script, path = f"script:{write_script(tmp_path, REPLIES)}", tmp_path / "lattice.sock"
    with Process(tmp_path, "--model", script, "--unix-socket", str(path), "--log-level", "info") as process:
        assert process.line(30) == {"ev": "ready", "unix_socket": str(path)}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b"hello world" in AtPath(path).ask(body())
        streamed = AtPath(path).ask(body(stream=True))
        assert streamed.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert process.signal(signal.SIGTERM).ended() == 0
    assert not path.exists()
    assert f"serving `echo` on `{path}` (Ctrl-C ends it)" in process.talk()
    assert "Traceback" not in process.talk()


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_socket_that_a_dead_server_left_is_replaced_and_a_living_one_is_not(
    tmp_path: Path, end: signal.Signals
) -> None:
    script, path = f"script:{write_script(tmp_path, REPLIES)}", tmp_path / "lattice.sock"
    with Process(tmp_path, "--model", script, "--unix-socket", str(path)) as first:
        first.line(30)
        with Process(tmp_path, "--model", script, "--unix-socket", str(path)) as second:
            assert second.ended(30) == 1
        assert second.talk() == f"error: cannot listen at `{path}`: somebody listens there already\n"
        assert b"hello world" in AtPath(path).ask(body())
        first.signal(end).ended()
    assert path.exists() is (end is signal.SIGKILL)
    with Process(tmp_path, "--model", script, "--unix-socket", str(path)) as third:
        third.line(30)
        assert b"hello world" in AtPath(path).ask(body())
        assert third.signal(signal.SIGTERM).ended() == 0


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(LatticeError, match="there is a file that is no socket"):
        listen_at(path)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(LatticeError, match="there is a file that is no socket"):
        listen_at(link)
    assert path.read_text() == "mine"
    with pytest.raises(LatticeError, match="cannot listen at"):
        listen_at(tmp_path / ("x" * 200))
    with pytest.raises(LatticeError, match="cannot listen at"):
        listen_at(tmp_path / "nowhere" / "x")


def test_a_socket_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = listen_at(path)
    path.unlink()
    second = listen_at(path)
    first.remove()
    assert path.exists()
    second.remove()
    assert not path.exists()
    first.listener.close()
    second.listener.close()


# What no request makes us do.

WATCHED: list[tuple[str, str]] = []
watching = threading.Event()


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if watching.is_set() and event in ("open", "socket.connect", "socket.getaddrinfo", "os.listdir", "os.scandir"):
        WATCHED.append((event, str(arguments[1 if event == "socket.connect" else 0])))


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """Files opened, folders listed and addresses looked up or connected to, by whatever thread of this process."""
    if not getattr(_hook, "set", False):
        sys.addaudithook(_hook)
        _hook.set = True  # type: ignore[attr-defined]
    WATCHED.clear()
    watching.set()
    try:
        yield WATCHED
    finally:
        watching.clear()


def test_no_path_model_or_url_of_a_request_is_opened_or_fetched(tmp_path: Path) -> None:
    """Report 142: a hub id, a path or a URL as `model`; peers also fetch images and `$ref`s, and load adapters."""
    secret = tmp_path / "secret.json"
    secret.write_text('{"model_type": "llama"}')
    with socket.create_server(("127.0.0.1", 0)) as trap, stage() as house, house.client() as client:
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/secret.png"
        client.post(PATH, json=body())  # what is imported or read once is read now
        client.post(PATH, json=body(response_format={"type": "json_object"}))
        asks = []
        for named in ("org/model", "../../etc/passwd", str(tmp_path), str(secret), f"file://{secret}", url, "~/.ssh"):
            schema = {"type": "object", "properties": {"a": {"$ref": named}}}
            part = {"type": "image_url", "image_url": {"url": named}}
            asks += [
                {"model": named},
                {"adapters": named, "adapter_path": named, "draft_model": named, "lora": named, "chat_template": named},
                {"chat_template_kwargs": {"chat_template": named, "tools_path": named}},
                {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
                {"guided_grammar": f'start: %import "{named}"'},
                {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
                {"messages": [{"role": "user", "content": [{"type": "text", "text": named}, part]}]},
                {"messages": [{"role": "user", "content": f"{{% include '{named}' %}} read {named}"}]},
                {"metadata": {"file": named}, "user": named, "prompt_cache_key": named},
            ]
        with watched() as seen:
            open(os.devnull).close()  # the watch watches
            statuses = {
                client.post(PATH, json=body(**ask) if "messages" not in ask else ask).status_code for ask in asks
            }
            client.get(f"/v1/models/{secret}")
            client.post("/v1/completions", json={"prompt": url, "model": str(secret)})
        assert {200, 400, 404} == statuses
        assert seen[0] == ("open", os.devnull)
        touched = [one for one in seen[1:] if str(tmp_path) in one[1] or one[0] != "open" or "etc" in one[1]]
        assert touched == []
        trap.settimeout(0.1)
        with pytest.raises(TimeoutError):
            trap.accept()


# What is never written down.


def test_keys_are_never_logged(tmp_path: Path) -> None:
    """In a header, in a header that is malformed, in a path, a query, an id, and in what is refused before the app."""
    script, log = f"script:{write_script(tmp_path, REPLIES)}", tmp_path / "log"
    arguments = ["--model", script, "--port", "0", "--log-level", "debug", "--log-file", str(log)]
    with Process(tmp_path, *arguments, LATTICE_API_KEY=f"{KEY} other-key") as process:
        port = process.port()
        with process.client(port) as client:
            assert client.post(PATH, json=body(), headers=BEARER).status_code == 200
            assert client.get(f"/v1/models?api_key={KEY}", headers=BEARER).status_code == 200
            assert client.get(f"/v1/{KEY}/models", headers=BEARER).status_code == 404
            assert client.get("/health", headers={"X-Request-Id": KEY}).headers["x-request-id"] != KEY
            assert client.get("/metrics", headers={"Authorization": "Bearer clients-own-secret"}).status_code == 401
            assert KEY not in client.get("/metrics", headers=BEARER).text
            assert client.get("/v1/models", headers={"Authorization": f"Basic {KEY}"}).status_code == 401
        for sent in (
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization:\x01Bearer {KEY}\r\n\r\n",
            f"GET /{KEY} HTTP/1.1\r\nAuthorization Bearer {KEY}\r\n\r\n",
            f"GET /{KEY} HTTP/1.1\r\nContent-Length: -1\r\nAuthorization: Bearer {KEY}\r\n\r\n",
            f"GET /?key={KEY} HTTP/1.1\r\nHost: {KEY}\r\n\r\n",
            f"{KEY} / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
            f"{KEY}\r\n\r\n",
        ):
            with Raw(port) as raw:
                raw.send(sent.encode("latin-1"))
                raw.socket.shutdown(socket.SHUT_WR)
                raw.rest()
        lines = []
        assert process.signal(signal.SIGTERM).ended() == 0
        while not process.silent():
            lines.append(json.dumps(process.line()))
    written = log.read_text() + process.talk() + "".join(lines)
    assert written.count("/v1/[key]/models") == 2
    for secret in (KEY, "other-key", "clients-own-secret"):
        assert secret not in written
    assert "hello" not in written
