"""A project's files on a Python package index, read without pip (an environment made by uv has none).

Knows the simple repository API in HTML (PEP 503) and JSON (PEP 691); knows nothing of models.

Thread: any
"""

from __future__ import annotations

import base64
import html.parser
import http.client
import json
import os
import urllib.error
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from lattice_cli.errors import FetchFailed
from lattice_cli.model.connection import UNREACHABLE, Link, open_url, unreachable_reason

PYPI = "https://pypi.org/simple"
SIMPLE = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


def ask_index(project: str, file_name: str, env: Mapping[str, str] = os.environ) -> tuple[str, str | None]:
    """URL and SHA-256 from the simple index that pip's or uv's variables name, else from PyPI."""
    index = env.get("PIP_INDEX_URL") or env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or PYPI
    url = f"{_without_credentials(index).rstrip('/')}/{project}/"
    page = Link(url, ca_bundle=env.get("PIP_CERT"), headers=(("Accept", SIMPLE), *index_credentials(url, (index,))))
    try:
        with open_url(page) as answer:
            body, kind, base = answer.read(), answer.headers.get_content_type(), answer.url or page.url
    except urllib.error.HTTPError as error:
        with error:
            raise FetchFailed(f"`{page.host}` has no `{project}`: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(
            f"`{page.host}` could not be reached: {unreachable_reason(page, error)}",
            hint="check the network; another index is taken from `PIP_INDEX_URL` or `UV_DEFAULT_INDEX`",
            code=UNREACHABLE,
        ) from error
    for name, url, sha256 in read_simple_page(body, kind):
        if name == file_name:
            return urljoin(base, url), sha256
    raise FetchFailed(f"`{page.host}` has no `{file_name}`")


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def read_simple_page(body: bytes, content_type: str) -> list[tuple[str, str, str | None]]:
    """Files of a project page: name, URL (perhaps relative), SHA-256 in hex where the page says it."""
    if content_type.endswith("+json"):
        files: list[dict[str, Any]] = json.loads(body)["files"]
        return [(file["filename"], file["url"], file.get("hashes", {}).get("sha256")) for file in files]
    page = _Anchors()
    page.feed(body.decode("utf-8", "replace"))
    return page.files


class _Anchors(html.parser.HTMLParser):
    """The `<a href="URL#sha256=HEX">` of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url, _, fragment = (dict(attrs).get("href") or "").partition("#")
        if tag == "a" and url:
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
            self.files.append((unquote(urlsplit(url).path.rpartition("/")[2]), url, sha256))


def index_credentials(url: str, indexes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """pip leaves name and password out of its report: take them from the index of the same host."""
    for index in indexes:
        parts = urlsplit(index)
        if parts.username and parts.hostname == urlsplit(url).hostname:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return (("Authorization", "Basic " + base64.b64encode(pair.encode()).decode("ascii")),)
    return ()
