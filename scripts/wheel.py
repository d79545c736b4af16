"""Builds the wheel: `python scripts/wheel.py DIST`. On a Linux CPU it carries the native kernels, compiled.

Such a wheel is for this Python, this system and the mlx that is installed here, and says so in its tags and in what it
requires; a user of it needs neither compiler nor nanobind. Where the kernels cannot be compiled, the wheel is one for
every system, and one sentence says why.

The build backend makes the plain wheel. What follows is ours, because it is known only once the module is there.

Thread: any
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lattice_cli import console
from lattice_cli.kernels import build, recipe, shelf
from lattice_cli.settings import read_home

ROOT = Path(__file__).parents[1]
CARRIED = "lattice_cli/kernels/prebuilt"
NATIVE = "lattice_cli/kernels/native/"
HASH_MAP = "nanobind/ext/robin_map/include/tsl/robin_map.h"  # its licence is its first comment

# What manylinux_2_35 grants: the one mlx-cpu's own wheels are for, so no user of a CPU is kept out by it.
MANYLINUX = "manylinux_2_35"
GRANTED = {"GLIBC": (2, 35), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}


@dataclass(frozen=True, slots=True)
class Cargo:
    """A compiled module and what it was made with."""

    key: str
    mlx: str
    nanobind: str
    module: Path


def main(target: Path) -> Path:
    """The wheel in the folder `target`."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        plain = plain_wheel(Path(place))
        try:
            cargo = compiled()
        except recipe.Unbuildable as reason:
            help_ = f"; to get them: {reason.hint}" if reason.hint else ""
            console.say(f"the wheel carries no compiled kernels: {reason}{help_}")
            return Path(shutil.move(plain, target / plain.name))
        return laden(plain, cargo, target)


def plain_wheel(place: Path) -> Path:
    """The wheel for every system, as the build backend makes it."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(place), str(ROOT)], check=True)
    (wheel,) = place.glob("*.whl")
    return wheel


def compiled() -> Cargo:
    """The kernels, compiled into our home unless they lie there. Raises: Unbuildable."""
    made = recipe.read_recipe()
    return Cargo(made.key, made.mlx, made.nanobind, build.make(read_home(), console.say))


def laden(plain: Path, cargo: Cargo, target: Path) -> Path:
    """The plain wheel again in the folder `target`, with the module in it."""
    tag = "-".join((python_tag(), python_tag(), platform_tag(cargo.module.read_bytes())))
    name, version, *_ = plain.stem.split("-")
    wheel, info = target / f"{name}-{version}-{tag}.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(plain) as source:
        members = {member: source.read(member) for member in source.namelist() if member != f"{info}/RECORD"}
        if recipe.key_of(cargo.mlx, cargo.nanobind, zipfile.Path(source, NATIVE)) != cargo.key:
            raise SystemExit("error: the kernels' sources changed while the wheel was built")
    licences = dict(notices())
    members[f"{info}/WHEEL"] = retagged(members[f"{info}/WHEEL"].decode(), tag).encode()
    members[f"{info}/METADATA"] = required(members[f"{info}/METADATA"].decode(), cargo.mlx, licences).encode()
    members |= {f"{info}/licenses/{file}": text for file, text in licences.items()}
    for file in (cargo.module, cargo.module.parent / shelf.MADE):
        members[f"{CARRIED}/{cargo.key}/{file.name}"] = file.read_bytes()
    write(wheel, members, f"{info}/RECORD")
    console.say(f"`{wheel}` carries the kernels for mlx {cargo.mlx}")
    return wheel


def write(wheel: Path, members: dict[str, bytes], own: str) -> None:
    """A zip file of the members and, last, their record; the same bytes every time."""
    with zipfile.ZipFile(wheel, "w") as sink:
        for member, data in {**members, own: record(members, own).encode()}.items():
            entry = zipfile.ZipInfo(member, (2020, 2, 2, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            sink.writestr(entry, data)


def python_tag() -> str:
    """`cp311`; `cp313t` for a free-threaded build. What is compiled fits that alone."""
    return "cp" + str(sysconfig.get_config_var("SOABI")).split("-")[1]


def platform_tag(module: bytes) -> str:
    """The systems a module runs on, by the versions of symbols it asks for; else those like this one."""
    arch = sysconfig.get_platform().split("-", 1)[1].replace("-", "_")
    asked = re.findall(rb"\b(GLIBC|GLIBCXX|CXXABI|GCC)_(\d+(?:\.\d+)*)\0", module)
    newer = [kind for kind, number in asked if tuple(map(int, number.split(b"."))) > GRANTED[kind.decode()]]
    return f"linux_{arch}" if newer else f"{MANYLINUX}_{arch}"


def retagged(text: str, tag: str) -> str:
    """The WHEEL file of a wheel for one system."""
    text = re.sub(r"(?m)^Root-Is-Purelib: .*$", "Root-Is-Purelib: false", text)
    return re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", text)


def required(text: str, mlx: str, licences: dict[str, bytes]) -> str:
    """The METADATA file: exactly that mlx, because another would leave the module unused; and no nanobind."""
    head, _, body = text.partition("\n\n")
    head += "\n"
    head = re.sub(r"(?m)^(Requires-Dist: mlx(?:\[\w+\])?)==0[^;\n]*", rf"\g<1>=={mlx}", head)
    head = re.sub(r"(?m)^Requires-Dist: nanobind\b.*\n", "", head)
    head = re.sub(r"(?m)^License-Expression: (.*)$", r"License-Expression: (\1) AND BSD-3-Clause AND MIT", head)
    files = "".join(f"License-File: {file}\n" for file in licences)
    return re.sub(r"(?m)^(?=License-File: NOTICE$)", files, head) + "\n" + body


def notices() -> Iterator[tuple[str, bytes]]:
    """The licences of what is compiled in: nanobind and the hash map it brings, and the headers of mlx."""
    for package in ("nanobind", "mlx"):
        for file in importlib.metadata.files(package) or ():
            if file.name.startswith("LICENSE") and ".dist-info" in file.parts[0]:
                yield f"LICENSE-{package}", Path(str(file.locate())).read_bytes()
    header = importlib.metadata.distribution("nanobind").locate_file(HASH_MAP)
    yield "LICENSE-robin-map", Path(str(header)).read_bytes().partition(b"*/")[0] + b"*/\n"


def record(members: dict[str, bytes], own: str) -> str:
    """The RECORD file: a hash and a size for every file but itself."""
    lines = []
    for member, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{member},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{own},,\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
