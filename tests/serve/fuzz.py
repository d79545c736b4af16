"""Random requests from seeds, for test_fuzz.py: bodies, headers, framing, and clients that leave, wait or never read.

One seed is one case, whatever ran before it; it replays alone against a server of its own:

    python -m tests.serve.fuzz SEED [SEED ...]

Thread: any
"""

from __future__ import annotations

import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.serve.process import ROOT, Process

LIMIT_S = 20.0  # for any answer, with eight clients on a busy machine
MODEL = ROOT / "fixtures/models/llama"
# Few bytes for what was read before, or else the prefix cache fills its budget and looks like a leak.
ARGUMENTS = ("--model", str(MODEL), "--port", "0", "--context", "512", "--max-rows", "4", "--max-pending", "64")
ARGUMENTS += ("--cache-bytes", "4M")
PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
GETS = ("/", "/health", "/metrics", "/v1/models", "/v1/models/llama", "/nowhere", "/v1/chat/completions", "*", "//", "")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "get", "")
STATUSES = frozenset({200, 204, 400, 403, 404, 405, 408, 411, 413, 415, 429, 431, 501, 503, 504})

Random = random.Random


# Values.


def number(rng: Random) -> Any:
    return rng.choice(
        (0, 1, 2, 3, -1, 0.5, 1.0, 1e308, -1e308, 1e-320, 2**31, 2**53 + 1, 2**63, -(2**63), 2**64, 10**400, 1e400, 4)
    )


def text(rng: Random) -> str:
    pool = (
        "a",
        "hello",
        "",
        "é",
        "🙂",
        "\u2028",
        "\x00",
        "<|im_end|>",
        "<think>",
        "\ud800",
        "{{ 1 }}",
        "\n\n",
        "data: x",
        "0",
    )
    return "".join(rng.choice(pool) for _ in range(rng.choice((0, 1, 2, 5, 40))))


def value(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return number(rng)
    if kind < 4:
        return text(rng)
    if kind < 6:
        return rng.choice((None, True, False))
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 7:
        return {text(rng) or "k": value(rng, depth + 1) for _ in range(rng.randrange(4))}
    deep: Any = 1
    for _ in range(rng.choice((3, 60, 400))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


FIELDS: dict[str, Callable[[Random], Any]] = {
    "temperature": lambda rng: rng.choice((0, 1, 2, 0.3)),
    "top_p": lambda rng: rng.choice((1, 0.5, 1e-9)),
    "top_k": lambda rng: rng.choice((0, 1, 50, 10**6)),
    "min_p": lambda rng: rng.choice((0, 0.1, 1)),
    "n": lambda rng: rng.choice((1, 2, 3, 16, 17)),
    "seed": lambda rng: rng.randrange(-(2**63), 2**64),
    "stop": lambda rng: rng.choice(("a", ["b", "c"], [], "", ["x"] * 20)),
    "logprobs": lambda rng: rng.choice((True, False, 1, 5)),
    "top_logprobs": lambda rng: rng.choice((0, 5, 20, 21)),
    "logit_bias": lambda rng: {str(rng.choice((0, 5, 99, 10**6, -1))): rng.choice((-100, 100, 0.5, 101))},
    "repetition_penalty": lambda rng: rng.choice((0, 1, 1.5, -1, 1e9)),
    "presence_penalty": lambda rng: rng.choice((-2, 0, 2, 3)),
    "frequency_penalty": lambda rng: rng.choice((-2, 0, 2, 3)),
    "response_format": lambda rng: rng.choice(
        (
            {"type": "json_object"},
            {"type": "text"},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": rng.choice(("integer", "x", 5))}}},
        )
    ),
    "tools": lambda rng: [{"type": "function", "function": {"name": rng.choice(("f", "", "a b")), "parameters": {}}}],
    "tool_choice": lambda rng: rng.choice(("auto", "none", "required", "x", {"type": "function"})),
    "stream_options": lambda rng: rng.choice(({}, None, {"include_usage": True}, 5)),
    "reasoning_effort": lambda rng: rng.choice(("low", "none", "x", None)),
    "echo": lambda rng: rng.choice((True, False)),
    "min_tokens": lambda rng: rng.choice((0, 2, 9)),
    "ignore_eos": lambda rng: True,
    "stop_token_ids": lambda rng: rng.choice(([0], [10**9], [1] * 65)),
    "guided_regex": lambda rng: rng.choice(("[ab]{1,3}", "(", "(a+)+$", "a{1000}")),
    "user": text,
}


def said(rng: Random, path: str) -> dict[str, Any]:
    """A body that is mostly right, with a few fields, of which some are not."""
    body: dict[str, Any] = {"max_tokens": rng.choice((1, 2, 3, 8)), "stream": rng.random() < 0.4}
    if path == PATHS[0]:
        roles = ("user", "assistant", "system", "developer", "tool", "x")
        turns = rng.choice((1, 1, 1, 2, 5))
        body["messages"] = [{"role": rng.choice(roles[: 1 + turns]), "content": text(rng)} for _ in range(turns)]
    elif path == PATHS[1]:
        body["prompt"] = rng.choice((text(rng), [text(rng), "b"], [1, 2, 3], [[1], [2]], [], "", [10**9], 5))
    elif path == PATHS[2]:
        body = {"content": text(rng), "with_pieces": rng.random() < 0.5}
    else:
        body = {"tokens": [rng.choice((0, 1, 50, 10**9, -1)) for _ in range(rng.randrange(6))]}
    for name in rng.sample(list(FIELDS), rng.randrange(5)):
        body[name] = FIELDS[name](rng) if rng.random() < 0.7 else value(rng)
    if rng.random() < 0.3:
        body[rng.choice((*body, text(rng)))] = value(rng)
    return body


def encoded(rng: Random, body: Any) -> bytes:
    """Its JSON, now and then with bytes that were changed on the way."""
    data = bytearray(json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"))
    if rng.random() < 0.25:
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[place:place] = rng.randbytes(rng.randrange(1, 5))
                case 1:
                    del data[place : place + rng.randrange(1, 9)]
                case 2:
                    data[place:place] = rng.choice((b'"', b"{", b"[", b"]", b"}", b",", b"\\u", b"\xff", b"\x00"))
                case _:
                    data[place : place + 1] = data[place : place + 1] * rng.choice((2, 1000))
    return bytes(data)


# Requests.


def head(rng: Random, method: str, path: str, *more: bytes) -> bytes:
    version = b"HTTP/1.1" if rng.random() < 0.9 else rng.choice((b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"", b"http/1.1"))
    lines = [f"{method} {path} ".encode() + version, b"Host: 127.0.0.1"]
    if rng.random() < 0.9:
        lines.append(b"Content-Type: application/json")
    if rng.random() < 0.5:
        lines.append(b"Connection: close")
    odd = (
        b"X-Request-Id: " + rng.randbytes(8).hex().encode(),
        b"X-Request-Id: \xff\xfe",
        b"Authorization: Bearer x",
        b"Origin: http://a.example",
        b"Expect: 100-continue",
        b"Accept: */*",
        b"Content-Encoding: gzip",
        b"Upgrade: h2c",
        b"X-Long: " + b"a" * rng.choice((10, 5000, 70_000)),
        b"Bad Header: x",
        b"NoColon",
        b" folded",
        b"A:\x00",
        b": empty",
        b"Host: other.example",
        b"\xc3\xa9: x",
    )
    if rng.random() < 0.35:
        lines += rng.sample(odd, rng.randrange(1, 4))
    if rng.random() < 0.02:
        lines += [b"X-%d: y" % index for index in range(rng.choice((100, 3000)))]
    end = b"\r\n" if rng.random() < 0.95 else rng.choice((b"\n", b"\r", b"\r\r\n"))
    return end.join([*lines, *more, b"", b""])


def chunked(rng: Random, data: bytes) -> bytes:
    parts, place = [], 0
    while place < len(data):
        size = rng.choice((1, 3, 50, 5000))
        part = data[place : place + size]
        parts.append(b"%x\r\n%b\r\n" % (len(part), part))
        place += size
    if rng.random() < 0.2:
        parts.insert(
            rng.randrange(len(parts) + 1),
            rng.choice((b"zz\r\n", b"-5\r\nx\r\n", b"FFFFFFFFFFFFFFFF\r\n", b"5;" + b"a" * 99 + b"\r\n", b"\r\n")),
        )
    return b"".join(parts) + rng.choice((b"0\r\n\r\n",) * 8 + (b"0\r\n", b"", b"0\r\nTrailer: x\r\n\r\n"))


def request(rng: Random) -> tuple[bytes, bool]:
    """The bytes of a request, and whether they are sure to be one whole request with a fit length."""
    if rng.random() < 0.15:
        method, path = (
            rng.choice(METHODS),
            rng.choice((*GETS, *PATHS, "/" + text(rng).replace(" ", ""), "/%00%ff%2e%2e/x?a=%zz#b")),
        )
        return head(rng, method, path.encode("utf-8", "surrogatepass").decode("latin-1")), False
    if rng.random() < 0.03:
        return rng.randbytes(rng.choice((1, 20, 3000))) + rng.choice((b"", b"\r\n\r\n")), False
    path = rng.choice((PATHS[0], PATHS[0], PATHS[0], *PATHS))
    data = encoded(rng, said(rng, path) if rng.random() < 0.9 else value(rng))
    framing = rng.random()
    if framing < 0.75:
        began = head(rng, "POST", path, b"Content-Length: %d" % len(data))
        return began + data, began.endswith(b"\r\n\r\n")
    if framing < 0.88:
        return head(rng, "POST", path, b"Transfer-Encoding: chunked") + chunked(rng, data), False
    length = rng.choice(
        (
            b"0",
            b"-1",
            b"5",
            b"+5",
            b"0x10",
            b"1e3",
            b" 7",
            b"99999999",
            b"9" * 5000,
            b"",
            b"5, 5",
            b"5\r\nContent-Length: 6",
        )
    )
    more = [b"Content-Length: " + length] + ([b"Transfer-Encoding: chunked"] if rng.random() < 0.3 else [])
    return head(rng, "POST", path, *more) + data, False


# Clients.


def run_case(seed: int, port: int) -> str | None:
    """One case. What was wrong, or None."""
    rng = random.Random(seed)
    data, whole = request(rng)
    manner = rng.choice(("ask",) * 6 + ("cut", "cut", "reset", "half", "leave", "leave", "slow", "deaf", "twice"))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as client:
            return MANNERS[manner](rng, client, data, whole)
    except TimeoutError:
        return f"no answer within {LIMIT_S:g} s ({manner})"
    except (ConnectionResetError, BrokenPipeError) as error:
        # The server may end a connection whose request it refused while we still send.
        return f"{manner}: {error}" if whole and manner == "ask" and len(data) < 30_000 else None


Manner = Callable[[Random, socket.socket, bytes, bool], "str | None"]


def ask(rng: Random, client: socket.socket, data: bytes, whole: bool) -> str | None:
    """Send all of it and read all of the answer. What is no whole request may be waited for, so its end is told."""
    client.sendall(data)
    if not whole:
        client.settimeout(0.4)
    try:
        told = _answer(client, whole)
    except TimeoutError:
        if whole:
            raise
        return None
    return judged(told) if told or whole else None


def cut(rng: Random, client: socket.socket, data: bytes, whole: bool) -> None:
    """Leave in the middle of the request."""
    client.sendall(data[: rng.randrange(len(data))])


def reset(rng: Random, client: socket.socket, data: bytes, whole: bool) -> None:
    client.sendall(data[: rng.randrange(len(data) + 1)])
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


def half(rng: Random, client: socket.socket, data: bytes, whole: bool) -> str | None:
    """Send, close that side, and read what there is."""
    client.sendall(data if rng.random() < 0.5 else data[: rng.randrange(len(data))])
    client.shutdown(socket.SHUT_WR)
    told = b""
    while part := client.recv(65536):
        told += part
    return judged(told) if told else None


def leave(rng: Random, client: socket.socket, data: bytes, whole: bool) -> None:
    """Read some of the answer and go."""
    client.sendall(data)
    client.settimeout(rng.choice((0.001, 0.01, 0.1)))
    try:
        client.recv(rng.choice((1, 20, 500)))
    except TimeoutError:
        return


def slow(rng: Random, client: socket.socket, data: bytes, whole: bool) -> str | None:
    """Send in small pieces, with waits between them."""
    pieces = rng.randrange(2, 6)
    places = sorted(rng.randrange(len(data) + 1) for _ in range(pieces))
    for start, end in zip((0, *places), (*places, len(data)), strict=True):
        client.sendall(data[start:end])
        time.sleep(rng.choice((0, 0.005, 0.02)))
    return ask(rng, client, b"", whole)


def deaf(rng: Random, client: socket.socket, data: bytes, whole: bool) -> None:
    """Never read."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    client.sendall(data)
    time.sleep(rng.choice((0, 0.02, 0.1)))


def twice(rng: Random, client: socket.socket, data: bytes, whole: bool) -> str | None:
    """Two requests at once on one connection."""
    return ask(rng, client, data + data, whole)


MANNERS: dict[str, Manner] = {
    "ask": ask, "cut": cut, "reset": reset, "half": half, "leave": leave, "slow": slow, "deaf": deaf, "twice": twice,
}  # fmt: skip


def _answer(client: socket.socket, whole: bool) -> bytes:
    """Up to the end of the first answer, or of the connection."""
    told = b""
    while part := client.recv(65536):
        told += part
        first, _, body = told.partition(b"\r\n\r\n")
        if first.startswith(b"HTTP/1.1 100"):
            first, _, body = body.partition(b"\r\n\r\n")
        lines = first.lower().split(b"\r\n")
        length = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        if body and length and len(body) >= length[0] and b"connection: close" not in lines:
            break
    return told


def judged(told: bytes) -> str | None:
    """What is wrong with an answer."""
    if told.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
        told = told.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not told:
            return None
    first, _, body = told.partition(b"\r\n\r\n")
    words = first.split(b" ", 2)
    if len(words) < 2 or words[0] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[1].isdigit():
        return f"no HTTP: {told[:200]!r}"
    status = int(words[1])
    if status not in STATUSES:
        return f"status {status}: {body[:300]!r}"
    if b"Traceback" in told or b'", line ' in told:
        return f"it shows its inside: {told[:300]!r}"
    if status >= 400 and body and b"content-type: application/json" in first.lower() and body.startswith(b"{"):
        try:
            error = json.JSONDecoder().raw_decode(body.decode())[0]
        except ValueError:
            return f"no envelope: {body[:300]!r}"
        if status != 503 and sorted(error.get("error", {})) != ["code", "message", "param", "type"]:
            return f"no envelope: {body[:300]!r}"
    return None


def main(seeds: list[int]) -> int:
    with tempfile.TemporaryDirectory() as home, Process(Path(home), *ARGUMENTS, "--log-level", "info") as process:
        port = process.port()
        faults = 0
        for seed in seeds:
            data, whole = request(random.Random(seed))
            print(f"seed {seed}: {len(data)} bytes, whole={whole}: {data[:3000]!r}")
            fault = run_case(seed, port)
            print(f"  {fault or 'no fault'}; the server {'lives' if process.process.poll() is None else 'is dead'}")
            faults += fault is not None
        print(process.talk(), file=sys.stderr)
    return faults


if __name__ == "__main__":
    sys.exit(main([int(argument) for argument in sys.argv[1:]]))
