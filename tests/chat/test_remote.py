"""Servers elsewhere, of all manners, on real sockets: the same events come from each.

Thread: any
"""

from __future__ import annotations

import json
import os
import random
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lattice_cli.chat.actions import Talk
from lattice_cli.chat.manner import Manner
from lattice_cli.chat.opening import Loader
from lattice_cli.chat.partner import Question
from lattice_cli.chat.remote import RemotePartner, open_remote
from lattice_cli.chat.remote_errors import said_in, unreachable
from lattice_cli.chat.remote_server import Offer, read_server
from lattice_cli.chat.session import Session
from lattice_cli.chat.window import WindowFull
from lattice_cli.conversation import said
from lattice_cli.engine.completion import Completion
from lattice_cli.errors import RemoteFailed, UsageError
from lattice_cli.events import Event, Failed, Piece, Started, Usage
from lattice_cli.model.locate import locate
from lattice_cli.settings import EngineSettings, Home
from tests.chat.desk import heard
from tests.chat.foreign import DONE, Foreign, chunk, data, foreign
from tests.serve.stage import HANG, eventually, served
from tests.tiny import write_tiny_folder

pytestmark = pytest.mark.wire

OPENER = data({"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}]})
PROPS = {"default_generation_settings": {"n_ctx": 2048}}
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def partner(
    server: Foreign, model: str | None = None, key: str | None = None, context: int | None = None
) -> RemotePartner:
    return open_remote(read_server(server.url, key), model, context)


def asked(*frames: bytes, **how: Any) -> Completion:
    """What comes of one question."""
    with foreign(*frames, **how) as server:
        talk = Talk(partner(server))
        asking = talk.ask("Hi")
        completion = Completion(asking.job_id)
        while not asking.ticket.done:
            event = asking.ticket.next(10)
            assert event is not None
            completion.add(event)
    return completion


def test_a_stream_of_openais_manner() -> None:
    """A role first, usage in a chunk of its own, `[DONE]`."""
    usage = data({"choices": [], "usage": USAGE})
    done = asked(OPENER, chunk("Hel"), chunk("lo"), chunk(finish="stop"), usage, DONE)
    assert (done.answer, done.reasoning) == ("Hello", "")
    assert done.finished is not None
    assert (done.finished.reason, done.finished.usage) == ("stop", Usage(9, 2, 4, 1))
    assert done.finished.timing.first_token_s > 0


def test_a_stream_of_llama_servers_manner() -> None:
    """Thoughts as `reasoning_content`, timings beside the last chunk, usage with it, lines that end with CRLF."""
    thought = data({"choices": [{"index": 0, "delta": {"reasoning_content": "Hm."}, "finish_reason": None}]})
    last = chunk(finish="stop", usage={"prompt_tokens": 9, "completion_tokens": 3}, timings={"predicted_ms": 5})
    done = asked(*(part.replace(b"\n\n", b"\r\n\r\n") for part in (OPENER, thought, chunk("Yes."), last, DONE)))
    assert (done.reasoning, done.answer) == ("Hm.", "Yes.")
    assert done.finished is not None and done.finished.usage == Usage(9, 3)


def test_a_stream_of_ollamas_manner() -> None:
    """Thoughts as `reasoning`, an empty text beside them, a role in each chunk, and never a usage."""

    def said(**delta: Any) -> bytes:
        finish = delta.pop("finish", None)
        return data({"choices": [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}]})

    done = asked(
        said(content="", reasoning="Hm"), said(content="Yes"), said(content="."), said(content="", finish="stop"), DONE
    )
    assert (done.reasoning, done.answer) == ("Hm", "Yes.")
    assert done.finished is not None and done.finished.usage == Usage()


def test_a_stream_of_mistrals_manner() -> None:
    """Contents may be parts, some of them thoughts."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    done = asked(chunk([thought]), chunk([{"type": "text", "text": "Yes"}]), chunk(".", "stop"), DONE)  # type: ignore[arg-type]
    assert (done.reasoning, done.answer) == ("Hm.", "Yes.")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (chunk(finish="content_filter"), "a filter of `127.0.0.1:"),
        (data({"choices": [{"delta": {"tool_calls": [{"id": "1"}]}}]}), "calls a tool, and there is none here"),
    ],
)
def test_an_answer_that_was_kept_back_is_not_a_normal_end(last: bytes, words: str) -> None:
    done = asked(chunk("Part"), last, DONE)
    assert done.failed is not None and words in done.failed.error.message


def test_keep_alives_and_empty_chunks_are_nothing() -> None:
    noise = (b": OPENROUTER PROCESSING\n\n", b"event: ping\ndata:\n\n", data({"choices": []}), data({"object": "x"}))
    done = asked(*noise, OPENER, *noise, chunk("Hi"), *noise, chunk(finish="stop"), DONE)
    assert done.answer == "Hi" and done.finished is not None


@pytest.mark.parametrize("end", [(), (DONE,)])
def test_a_stream_may_end_without_done_or_without_a_reason(end: tuple[bytes, ...]) -> None:
    last = () if end else (chunk(finish="length"),)
    done = asked(chunk("Hi"), *last, *end)
    assert done.finished is not None and done.finished.reason == ("stop" if end else "length")


def test_a_stream_that_breaks_off_is_a_failure_and_never_a_short_answer() -> None:
    done = asked(chunk("Half an ans"))
    assert done.answer == "Half an ans"
    assert done.failed is not None and done.failed.error.message.endswith("broke off")


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1e\r\ndata: "])
def test_a_server_that_dies_is_told_in_words(sent: bytes) -> None:
    """`broke: IncompleteRead(0 bytes read)` was said of a server that had been killed."""
    question = Question((said("user", "Hi"),), Manner())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        ticket = RemotePartner(read_server(f"http://127.0.0.1:{port}", None), Offer("m")).ask(question, None)
        connection, _ = listening.accept()
        with connection:
            while b"Hi" not in connection.recv(65536):
                pass
            connection.sendall(sent)
        last: Event | None = None
        while not ticket.done:
            last = ticket.next(1.0) or last
    assert isinstance(last, Failed)
    why = "broke: the server closed it before the answer was whole"
    assert last.error.message == f"the connection to `127.0.0.1:{port}` {why}"


@pytest.mark.parametrize(
    "frame",
    [
        data({"error": {"message": "out of memory.", "code": 500}}),
        data({"error": "out of memory"}),
        b'event: error\ndata: {"message": "out of memory", "type": "server_error"}\n\n',
    ],
)
def test_an_error_in_the_stream_is_one_sentence(frame: bytes) -> None:
    done = asked(chunk("Half"), frame)
    assert done.failed is not None and done.answer == "Half"
    assert done.failed.error.message.endswith("failed in the middle of the answer: out of memory")


def test_a_stream_that_is_none_is_one_sentence() -> None:
    done = asked(b"data: {nonsense\n\n")
    assert done.failed is not None and "is no OpenAI stream" in done.failed.error.message
    done = asked(data([1, 2]))
    assert done.failed is not None and "is no OpenAI stream" in done.failed.error.message


def test_a_server_that_does_not_stream_is_heard_too() -> None:
    body = {
        "choices": [{"message": {"content": "Hi", "reasoning_content": "Hm"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    done = asked(json.dumps(body).encode(), kind="application/json")
    assert (done.answer, done.reasoning) == ("Hi", "Hm")
    assert done.finished is not None and done.finished.usage.prompt_tokens == 9


def test_letters_cut_between_packets_come_whole() -> None:
    whole = (
        b"data: "
        + json.dumps(
            {"choices": [{"delta": {"content": "naïve 😀"}, "finish_reason": "stop"}]}, ensure_ascii=False
        ).encode()
        + b"\n\n"
    )
    done = asked(*(whole[at : at + 1] for at in range(len(whole))), DONE)
    assert done.answer == "naïve 😀"


@pytest.mark.parametrize(
    ("status", "body", "sentence", "hint"),
    [
        (
            401,
            b'{"error": {"message": "Incorrect API key provided."}}',
            "status 401: Incorrect API key provided",
            "--api-key",
        ),
        (404, b'{"detail": "model not found"}', "status 404: model not found", "--url"),
        (502, b"<html><h1>Bad Gateway</h1></html>", "status 502: Bad Gateway", None),
        (500, b"", "status 500: it does not say why", None),
    ],
)
def test_a_refusal_is_one_sentence(status: int, body: bytes, sentence: str, hint: str | None) -> None:
    done = asked(body, status=status, kind="application/json")
    assert done.failed is not None
    error = done.failed.error
    assert error.message.endswith(sentence) and "\n" not in error.message
    assert (hint or "") in (error.hint or "")


def test_what_is_asked_is_what_was_chosen_and_no_more() -> None:
    """The server's own defaults hold where nobody chose."""
    with foreign(chunk("x", "stop"), DONE) as server:
        talk = Talk(partner(server, key="secret"), Session("Be brief."))
        heard(talk, talk.ask("Hi"))
        talk.set("top_k", "5")
        talk.set("max_tokens", "9")
        talk.think("off")
        heard(talk, talk.ask("And?"))
        plain, chosen = server.asked
        assert plain == {
            "model": "first",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        assert (chosen["top_k"], chosen["max_tokens"], chosen["reasoning_effort"]) == (5, 9, "none")
        assert [message["role"] for message in chosen["messages"]] == ["system", "user", "assistant", "user"]
        assert server.headers[-1]["authorization"] == "Bearer secret"
        assert server.paths == ["/v1/models", "/v1/chat/completions", "/v1/chat/completions"]


def test_a_schema_is_a_response_format() -> None:
    with foreign(chunk("{}", "stop"), DONE) as server:
        talk = Talk(partner(server), schema='{"type": "object"}')
        heard(talk, talk.ask("Hi"))
        (body,) = server.asked
    schema = {"name": "answer", "strict": True, "schema": {"type": "object"}}
    assert body["response_format"] == {"type": "json_schema", "json_schema": schema}


def test_an_older_server_that_refuses_stream_options_is_asked_without() -> None:
    refusal = {"error": {"message": "unknown field stream_options"}}
    with foreign(chunk("x", "stop"), DONE, refuses={"stream_options": refusal}) as server:
        talk = Talk(partner(server))
        completion, _ = heard(talk, talk.ask("Hi"))
        assert completion.answer == "x"
        assert ["stream_options" in body for body in server.asked] == [True, False]


@pytest.mark.parametrize("frames", [(), (chunk("Part"),)])
def test_cancelling_closes_the_connection_at_once(frames: tuple[bytes, ...]) -> None:
    with foreign(*frames, hangs=True) as server:
        talk = Talk(partner(server))
        asking = talk.ask("Hi")
        assert server.waiting.wait(60)
        while frames and not isinstance(asking.ticket.next(10), Started):
            pass
        asking.ticket.cancel()  # the server says nothing more for ever
        completion = Completion(asking.job_id)
        while not asking.ticket.done:
            if event := asking.ticket.next(10):
                completion.add(event)
        assert completion.finished is not None and completion.finished.reason == "cancelled"
        assert server.left.wait(60)


def test_the_first_model_is_asked_unless_another_is_named() -> None:
    with foreign() as server:
        assert partner(server).name == "first"
        assert partner(server, "unlisted").name == "unlisted"
        chosen = partner(server, "second")
        assert chosen.models() == ["second", "first"]
        assert chosen.switched("first").name == "first"
        with pytest.raises(UsageError, match="has no model `third`"):
            chosen.switched("third")


@pytest.mark.parametrize(
    ("entry", "props", "window"),
    [
        ({"id": "m", "max_model_len": 4096}, None, 4096),
        (
            {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}},
            {"default_generation_settings": {"n_ctx": 2048}},
            2048,
        ),
        ({"id": "m", "owned_by": "llamacpp"}, None, None),
        ({"id": "m", "owned_by": "library"}, None, None),
    ],
)
def test_a_window_is_known_where_the_server_tells(entry: dict[str, Any], props: Any, window: int | None) -> None:
    with foreign(models={"object": "list", "data": [entry]}, props=props) as server:
        assert partner(server).context_tokens == window
        assert partner(server, context=512).context_tokens == 512


@pytest.mark.parametrize(
    ("models", "status", "words"),
    [
        ({"data": []}, 200, "lists no model"),
        ({"error": {"message": "no key"}}, 401, "status 401: no key"),
        (None, 404, "status 404"),
    ],
)
def test_a_server_without_a_list_needs_a_name(models: Any, status: int, words: str) -> None:
    with foreign(models=models, models_status=status) as server, pytest.raises(RemoteFailed, match=words):
        partner(server)


@pytest.mark.parametrize(
    "how", [{"models": None}, {"models_status": 500}, {"models": "nonsense"}, {"models": {"a": 1}}]
)
def test_a_server_without_a_list_is_asked_by_name(how: dict[str, Any]) -> None:
    """mlx_lm.server answers with nothing at all where the hub's cache is not there."""
    with foreign(chunk("x", "stop"), **how) as server:
        talk = Talk(partner(server, "named"))
        assert heard(talk, talk.ask("Hi"))[0].answer == "x"
        assert server.asked[0]["model"] == "named"


def test_what_goes_wrong_with_https_is_told_in_words() -> None:
    """`[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)`, and "is the server running?"."""
    with foreign() as server, pytest.raises(RemoteFailed, match="what answers there is no https") as plain:
        open_remote(read_server(server.url.replace("http:", "https:"), None), None)
    assert plain.value.hint == "`http://`, without the s?"
    untrusted = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    untrusted.verify_message = "self-signed certificate"
    told = unreachable("box:443", untrusted)
    assert told.message == "`box:443` cannot be reached: its certificate is not trusted, self-signed certificate"
    assert told.hint is not None and "`SSL_CERT_FILE`" in told.hint


def test_nobody_listening_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(RemoteFailed) as failed:
        open_remote(read_server(f"http://127.0.0.1:{port}", None), None)
    assert failed.value.message == f"`127.0.0.1:{port}` cannot be reached: Connection refused"
    assert failed.value.exit_code == 3


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("ftp://x", None),
        ("127.0.0.1:80", None),
        ("http://", None),
        ("http://a", "a\nb"),
        ("http://me:secret@a/v1", None),  # it would lie in a saved session
        ("http://a/v1?key=secret", None),
        ("http://a/v1#x", None),
    ],
)
def test_an_address_or_a_key_that_cannot_be_used_is_said(url: str, key: str | None) -> None:
    with pytest.raises(UsageError):
        read_server(url, key)


def test_tokens_are_estimated_from_what_an_answer_told() -> None:
    usage = {"prompt_tokens": 104, "completion_tokens": 1}
    with foreign(
        chunk("x", "stop", usage=usage), DONE, models={"data": [{"id": "m", "max_model_len": 4096}]}
    ) as server:
        talk = Talk(partner(server))
        heard(talk, talk.ask("a" * 200))
        count, window, sentence = talk.tokens()
    assert (count.tokens, count.exact, window) == (108, False, 4096)  # two characters a token, four tokens a turn
    assert sentence == "about 108 of 4,096 tokens (3% full)"


def test_a_window_that_fills_is_said_before_anything_is_sent() -> None:
    with foreign(chunk("x", "stop"), DONE, models={"data": [{"id": "m", "max_model_len": 400}]}) as server:
        talk = Talk(partner(server), Session().asked("a" * 700).answered("b" * 700))
        with pytest.raises(WindowFull, match=r"has about 4.. tokens and the context window is 400") as full:
            talk.ask("c" * 70)
        assert server.asked == []
        heard(talk, talk.drop_oldest(full.value))
        assert [message["content"] for message in server.asked[0]["messages"]] == ["c" * 70]


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": {"message": "This model's maximum context length is 400 tokens.", "code": "context_length_exceeded"}},
        {"error": {"code": 400, "message": "the request exceeds the available context size, try increasing it"}},
    ],
)
def test_a_server_that_finds_the_prompt_too_long_leaves_the_choice_to_people(refusal: Any) -> None:
    """Its window is not known beforehand; half of the talk goes then, and only when somebody wants that."""
    with foreign(chunk("x", "stop"), DONE, refuses={"messages": refusal}) as server:
        session = Session()
        for name in "abcd":
            session = session.asked(name).answered(name.upper())
        talk = Talk(partner(server), session)
        with pytest.raises(WindowFull) as full:
            heard(talk, talk.ask("e"))
        assert talk.session == session
        server.refuses = {}
        heard(talk, talk.drop_oldest(full.value))
        assert [message["content"] for message in server.asked[-1]["messages"]] == ["c", "C", "d", "D", "e"]


NOISE = (
    OPENER,
    chunk("Hi"),
    chunk("naïve 😀"),
    chunk(finish="stop"),
    chunk("x", "length"),
    DONE,
    b": comment\n\n",
    b"\n",
    b"data:\n\n",
    b"event: error\ndata: {}\n\n",
    data({"error": None, "choices": []}),
    data({"choices": None}),
    data({"choices": [None]}),
    data({"choices": [{"delta": None}]}),
    data({"choices": [{"delta": {"content": [1]}}]}),
    data({"choices": [{"delta": {"content": 7}}]}),
    data({"choices": {"a": 1}}),
    data({"choices": [], "usage": {"prompt_tokens": "many"}}),
    data({"choices": [], "usage": {"prompt_tokens_details": 3}}),
    data([]),
    data(None),
    data("text"),
    data(b"[" * 100_000),
    data(b"{"),
    b"\xff\xfe\x00",
    b"data: \xff\n\n",
)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_server_sends_an_answer_ends_once(seed: int) -> None:
    """No thread dies in silence and leaves people waiting; what went wrong is one sentence."""
    chance = random.Random(seed)
    for _ in range(10):
        sent = b"".join(chance.choices(NOISE, k=chance.randint(0, 6)))
        cuts = sorted(chance.randrange(len(sent) + 1) for _ in range(chance.randint(0, 5)))
        parts = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
        done = asked(*parts)
        assert (done.finished is None) != (done.failed is None), sent
        assert isinstance(done.answer + done.reasoning, str)
        if done.failed is not None:
            assert isinstance(done.failed.error, RemoteFailed), sent
            assert "\n" not in done.failed.error.message
            assert "could not be read" not in done.failed.error.message, sent


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "a\\nb"}}', "a b"),
        (b'{"message": "x", "code": "y"}', "x"),
        (b'{"detail": [{"msg": "field"}]}', "[{'msg': 'field'}]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"[]", "[]"),
    ],
)
def test_words_are_found_in_whatever_a_server_says(body: bytes, words: str) -> None:
    assert said_in(body)[0] == words


def test_our_own_server_is_talked_to() -> None:
    """The same answer, thoughts and usage as from the engine of this process; going on with one, and stopping one."""
    told = {"when": "tell", "tell": True, "tokens": ["."]}
    replies = [told, HANG, {"tokens": ["<think>", "Hm.", "</think>", "\n\nYes", "."]}]
    with served(replies, think=["<think>", "</think>"]) as server:
        talk = Talk(open_remote(read_server(server.url, None), None), manner=Manner().having(top_k=3, stop=["END"]))
        assert talk.partner.context_tokens == 4096
        completion, note = heard(talk, talk.ask("Hi"))
        assert (completion.reasoning, completion.answer, note) == ("Hm.", "Yes.", None)
        assert completion.finished is not None
        assert completion.finished.usage == Usage(52, 5, 0, 2)
        talk.think("off")
        said = json.loads(heard(talk, talk.ask("tell"))[0].answer.removesuffix("."))
        assert (said["sampling"]["top_k"], said["stop"], said["limits"]["reasoning_tokens"]) == (3, ["END"], 1)
        assert "<|im_start|>assistant\nYes.<|im_end|>" in said["prompt"]
        talk.undo()
        talk.think("show")
        said = json.loads(heard(talk, talk.edit("tell more"))[0].answer.removesuffix("."))
        assert said["prompt"].count("<|im_start|>user") == 1
        heard(talk, talk.continue_())
        asking = talk.ask("hang")
        while not isinstance(asking.ticket.next(10), Piece):
            pass
        asking.ticket.cancel()
        eventually(server.idle)
        with pytest.raises(UsageError, match="has no model `another`"):
            talk.model("another")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
@pytest.mark.tiny
def test_mlx_lms_own_server_says_the_same_as_we_do(tmp_path: Path) -> None:
    """A real server of another hand, with the same weights."""
    folder = write_tiny_folder(tmp_path / "tiny")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "hub").mkdir()
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(folder), "--port", str(port)]
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            eventually(lambda: listens(port), 60)
            manner = Manner().having(temperature=0, max_tokens=8)
            theirs = Talk(open_remote(read_server(f"http://127.0.0.1:{port}", None), None), manner=manner)
            told, _ = heard(theirs, theirs.ask("Hello"))
        finally:
            process.terminate()
    home = Home(tmp_path, tmp_path / "models", offline=True, kernels="off")
    loader, source = Loader(home, EngineSettings(max_rows=1), quiet=True), locate(str(folder), home)
    ours = Talk(loader.partner(loader.start(source), source), manner=manner)
    said, _ = heard(ours, ours.ask("Hello"))
    assert ours.partner.close(10)
    assert said.finished is not None and told.finished is not None
    assert (told.answer, told.finished.reason) == (said.answer, said.finished.reason)
    assert told.finished.usage.completion_tokens == said.finished.usage.completion_tokens == 8
