"""Frames -> the bytes of a server-sent event stream, and the iterator that a web server may drop at any time.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html

Thread: request
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from lattice_cli.serve.wire import Frame

CONTENT_TYPE = "text/event-stream; charset=utf-8"
# `X-Accel-Buffering` keeps nginx from gathering events. No `Connection` header: the server owns that one.
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
KEEP_ALIVE = b": keep-alive\n\n"


def encode(frames: Iterable[Frame]) -> bytes:
    """One `data:` line a frame; b"" for no frames."""
    return b"".join(_encode_one(frame) for frame in frames)


def _encode_one(frame: Frame) -> bytes:
    if frame.event is None:
        return b"data: %b\n\n" % frame.data
    return b"event: %b\ndata: %b\n\n" % (frame.event.encode("ascii"), frame.data)


class EventStream:
    """A body that is told once when it is over, however it ends: read out, dropped half-way, or never begun."""

    def __init__(self, parts: Generator[bytes, None, None], on_close: Callable[[], None]) -> None:
        self._parts = parts
        self._on_close = on_close
        self._closed = False

    def __iter__(self) -> EventStream:
        return self

    def __next__(self) -> bytes:
        return next(self._parts)

    def close(self) -> None:
        """Called by the web server, at the latest when the client is gone."""
        if self._closed:
            return
        self._closed = True
        try:
            self._parts.close()
        finally:
            self._on_close()
