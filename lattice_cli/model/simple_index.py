"""One file of a project on a Python package index, a page of links or a folder.

Knows the simple repository API in HTML (PEP 503) and JSON (PEP 691) and local folders; knows nothing of
models, and leaves it to the caller which index to ask.

Thread: any
"""

from __future__ import annotations

import base64
import html.parser
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from lattice_cli.errors import FetchFailed
from lattice_cli.model.connection import REFUSED, UNREACHABLE, Link, open_url, unreachable_reason
from lattice_cli.model.pip_settings import PipSettings

SIMPLE = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file as a page lists it; `url` may be relative there, `sha256` is hex, None where not said."""

    name: str
    url: str
    sha256: str | None


def find_file(place: str, file_name: str, settings: PipSettings) -> IndexedFile | None:
    """The file on one page or in one folder, with its whole URL; None where it is not. Blocks.

    Raises: FetchFailed where the place cannot be reached or refuses.
    """
    local = local_folder(place)
    if local is not None:
        file = local / file_name
        if file.is_file():
            return IndexedFile(file_name, file.absolute().as_uri(), None)
        if not (local / "index.html").is_file():
            return None
        place = (local / "index.html").absolute().as_uri()
    for found in _read(place, settings):
        if found.name == file_name:
            return found
    return None


def local_folder(place: str) -> Path | None:
    """The folder that a `file://` URL or a bare path names; None for a page of the network."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    return None if parts.scheme in ("http", "https") else Path(place).expanduser()


def _read(place: str, settings: PipSettings) -> list[IndexedFile]:
    url = _without_credentials(place)
    headers = (("Accept", SIMPLE), *index_credentials(url, (place,)))
    page = Link(url, headers=headers, ca_bundle=settings.cert, proxy=settings.proxy)
    try:
        with open_url(page) as answer:
            files = read_simple_page(answer.read(), answer.headers.get_content_type())
            base = answer.url or url
    except urllib.error.HTTPError as error:
        with error:
            sentence = f"`{page.host}` refused its page `{urlsplit(url).path}`: {error.code} {error.reason}"
            raise FetchFailed(sentence, hint="check `pip config list`", code=REFUSED) from error
    except (OSError, http.client.HTTPException) as error:
        raise FetchFailed(
            f"`{page.host}` could not be reached: {unreachable_reason(page, error)}",
            hint="check the network; another index is taken from pip's settings, e.g. `PIP_INDEX_URL`",
            code=UNREACHABLE,
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise FetchFailed(f"`{page.host}` did not answer as a package index does", code=REFUSED) from error
    return [IndexedFile(file.name, urljoin(base, file.url), file.sha256) for file in files]


def read_simple_page(body: bytes, content_type: str) -> list[IndexedFile]:
    """What a project's page lists."""
    if content_type.endswith("+json"):
        files: list[dict[str, Any]] = json.loads(body)["files"]
        return [IndexedFile(file["filename"], file["url"], file.get("hashes", {}).get("sha256")) for file in files]
    page = _Anchors()
    page.feed(body.decode("utf-8", "replace"))
    return page.files


class _Anchors(html.parser.HTMLParser):
    """The `<a href="URL#sha256=HEX">` of a PEP 503 page."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[IndexedFile] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        url, _, fragment = (dict(attrs).get("href") or "").partition("#")
        if tag == "a" and url:
            sha256 = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
            self.files.append(IndexedFile(unquote(urlsplit(url).path.rpartition("/")[2]), url, sha256))


# Who we are.


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def index_credentials(url: str, indexes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The header that proves who we are to the index on the host of `url`, from the index's own URL."""
    for index in indexes:
        parts = urlsplit(index)
        if parts.username and parts.hostname == urlsplit(url).hostname:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            return (("Authorization", "Basic " + base64.b64encode(pair.encode()).decode("ascii")),)
    return ()
