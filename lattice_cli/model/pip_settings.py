"""How the user's pip reaches its package index, and pip itself as the last resort.

Knows `pip config list` and the variables of pip and uv; knows nothing of models.
UPSTREAM: `pip install --dry-run --report` would name the wheel by pip's own rules, but pip 23.2 (which
comes with Python 3.11) fetches all of it to say so, unseen and not resumable; 26.3 does not.

Thread: any
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PIP = (sys.executable, "-m", "pip")
PYPI = "https://pypi.org/simple"
CONFIG_TIMEOUT_S = 30.0
DOWNLOAD_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class PipSettings:
    """`indexes` are simple repositories, the first one first; `find_links` are pages or folders that list
    files; `cert` is a file or folder of certificates.
    """

    indexes: tuple[str, ...] = (PYPI,)
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None


def pip_settings(pip: Sequence[str] = PIP, env: Mapping[str, str] = os.environ) -> PipSettings:
    """What pip would use, from all its files and variables; without pip, as in an environment made by
    uv, what the variables say. Cost: 0.4 s.
    """
    answer = _run([*pip, "config", "list", "--disable-pip-version-check"], CONFIG_TIMEOUT_S)
    if answer is not None and answer.returncode == 0:
        return read_listing(answer.stdout)
    said = {name[4:].lower().replace("_", "-"): value for name, value in env.items() if name.startswith("PIP_")}
    return _settings({"index-url": env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or PYPI, **said})


def read_listing(listing: str) -> PipSettings:
    """Read `pip config list`: lines of `section.name='value'`, environment variables as `:env:.name`.

    Of one name the more special section holds: global, then install, then the environment.
    """
    said: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listing.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(section):
                said[name.removeprefix(section)] = str(ast.literal_eval(value))
    return _settings(said)


def _settings(said: Mapping[str, str]) -> PipSettings:
    indexes = [said.get("index-url") or PYPI, *said.get("extra-index-url", "").split()]
    if said.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        indexes = []
    return PipSettings(
        indexes=tuple(indexes),
        find_links=tuple(said.get("find-links", "").split()),
        cert=said.get("cert") or None,
        proxy=said.get("proxy") or None,
    )


def pip_download(project: str, version: str, folder: Path, pip: Sequence[str] = PIP) -> bool:
    """Let pip put the project's wheel into `folder`, without its dependencies; whether it did. Blocks.

    It knows more ways to prove who one is (keyring, netrc), and cannot resume.
    """
    command = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1"]
    answer = _run([*pip, *command, *options, f"{project}=={version}"], DOWNLOAD_TIMEOUT_S)
    return answer is not None and answer.returncode == 0


def _run(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return None
