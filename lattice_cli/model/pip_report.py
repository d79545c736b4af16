"""Where pip would take a wheel from, asked without installing or downloading it.

Knows pip's report (`install --dry-run --report`) and `pip config list`; knows nothing of models. pip is
asked because then the user's index, proxy and certificates hold, from whatever file or variable.

Thread: any
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from lattice_cli.errors import FetchFailed
from lattice_cli.model.connection import UNREACHABLE

PIP = (sys.executable, "-m", "pip")
PIP_TIMEOUT_S = 600.0  # an index without separate metadata (PEP 658) makes pip fetch the whole wheel


@dataclass(frozen=True, slots=True)
class PipSettings:
    """What pip's configuration files and variables say about reaching an index."""

    cert: str | None = None
    proxy: str | None = None
    indexes: tuple[str, ...] = ()


def ask_pip(project: str, version: str, pip: Sequence[str] = PIP) -> tuple[str, str | None] | None:
    """URL and SHA-256 as `pip install` would choose them; None where pip is too old to report (< 22.2)."""
    command = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:", "--report", "-"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1"]
    answer = _run([*pip, *command, f"{project}=={version}"])
    if answer.returncode != 0:
        if "no such option" in answer.stderr:
            return None
        raise _failure(project, version, answer.stderr)
    found = json.loads(answer.stdout)["install"][0]["download_info"]
    archive = found.get("archive_info", {})
    legacy = str(archive.get("hash", "")).removeprefix("sha256=") or None
    return str(found["url"]), archive.get("hashes", {}).get("sha256", legacy)


def _failure(project: str, version: str, stderr: str) -> FetchFailed:
    if any(
        sign in stderr for sign in ("NewConnectionError", "ConnectTimeout", "ProxyError", "SSLError", "Max retries")
    ):
        return FetchFailed(
            "the package index could not be reached",
            hint="check the network and `pip config list`",
            code=UNREACHABLE,
        )
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    reason = f": {errors[-1]}" if errors else ""
    return FetchFailed(
        f"pip found no `{project}` {version} on the package index{reason}", hint="check `pip config list`"
    )


def pip_settings(pip: Sequence[str] = PIP) -> PipSettings | None:
    """None where there is no pip, as in an environment made by uv."""
    answer = _run([*pip, "config", "list", "--disable-pip-version-check"])
    return read_pip_settings(answer.stdout) if answer.returncode == 0 else None


def read_pip_settings(listing: str) -> PipSettings:
    """Read `pip config list`: lines of `section.name='value'`, environment variables as `:env:.name`.

    Of one name the more special section holds: global, then install, then the environment.
    """
    said: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):
        for line in listing.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(section):
                said[name.removeprefix(section)] = str(ast.literal_eval(value))
    indexes = f"{said.get('index-url', '')} {said.get('extra-index-url', '')} {said.get('find-links', '')}"
    return PipSettings(said.get("cert"), said.get("proxy"), tuple(indexes.split()))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=PIP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise FetchFailed(f"pip did not answer within {PIP_TIMEOUT_S:.0f} s", code=UNREACHABLE) from error
