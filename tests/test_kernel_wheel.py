"""The wheel that carries compiled kernels: what it says of itself, and that it needs neither compiler nor nanobind.

Thread: any
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from lattice_cli.kernels import recipe, shelf

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("LATTICE_TEST_CACHE", "~/.cache/lattice-tests")).expanduser()
INFO = "lattice_cli-0.1.0.dist-info"
METADATA = """Metadata-Version: 2.4
Name: lattice-cli
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-MIT
License-File: NOTICE
Requires-Dist: mlx-lm==0.32.*
Requires-Dist: mlx==0.32.*
Requires-Dist: mlx[cpu]==0.32.*; extra == 'cpu'
Requires-Dist: nanobind==3.1.0; (sys_platform == 'linux') and extra == 'cpu'

Requires-Dist: mlx==0.32.* stands in the description
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not recipe.version("nanobind"), reason="Linux with nanobind compiles kernels"
)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("symbols", "manylinux"),
    [
        (b"GLIBC_2.34\0GLIBCXX_3.4.29\0CXXABI_1.3.13\0GCC_3.0\0", True),
        (b"GLIBC_2.35\0GLIBC_2.2.5\0", True),
        (b"GLIBC_2.38\0GLIBCXX_3.4.29\0", False),  # isoc23 of a newer C library
        (b"GLIBCXX_3.4.32\0", False),
    ],
)
def test_the_tag_promises_no_older_system_than_the_module_runs_on(symbols: bytes, manylinux: bool) -> None:
    from scripts.wheel import platform_tag

    assert platform_tag(b"\x7fELF\0" + symbols).startswith("manylinux_2_35_" if manylinux else "linux_")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A plain wheel with a module laden into it; its name is what pip reads."""
    from scripts.wheel import Cargo, laden

    plain = tmp_path / "lattice_cli-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(plain, "w") as sink:
        sink.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        sink.writestr(f"{INFO}/METADATA", METADATA)
        sink.writestr(f"{INFO}/RECORD", "old,,\n")
        for file in recipe.SOURCES.iterdir():
            sink.writestr(f"lattice_cli/kernels/native/{file.name}", file.read_bytes())
    key = recipe.key_of("0.32.7", "3.1.0")
    module = tmp_path / key / recipe.FILE
    module.parent.mkdir()
    module.write_bytes(b"\x7fELF\0GLIBC_2.34\0")
    (module.parent / shelf.MADE).write_text("{}")
    (tmp_path / "dist").mkdir()
    return laden(plain, Cargo(key, "0.32.7", "3.1.0", module), tmp_path / "dist")


@pytest.mark.pure
def test_the_wheel_says_what_it_is_for(wheel: Path) -> None:
    """Its module would lie unused under any other mlx, and nothing compiles: so that mlx, and no nanobind."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert wheel.name.startswith(f"lattice_cli-0.1.0-{python}-{python}-manylinux_2_35_")
    with zipfile.ZipFile(wheel) as opened:
        assert opened.read(f"{INFO}/WHEEL").decode().splitlines()[1:] == [
            "Root-Is-Purelib: false",
            f"Tag: {wheel.stem.removeprefix('lattice_cli-0.1.0-')}",
        ]
        metadata = opened.read(f"{INFO}/METADATA").decode()
        names = opened.namelist()
    licences = [line.removeprefix("License-File: ") for line in metadata.splitlines() if "License-File" in line]
    assert set(licences) == {"LICENSE-MIT", "NOTICE", "LICENSE-nanobind", "LICENSE-mlx", "LICENSE-robin-map"}
    assert {f"{INFO}/licenses/{file}" for file in licences if "-" in file} - set(names) == {
        f"{INFO}/licenses/LICENSE-MIT"  # the plain wheel of this test has none
    }
    assert [line for line in metadata.splitlines() if line.startswith(("Requires-Dist", "License-E"))] == [
        "License-Expression: (MIT OR Apache-2.0) AND BSD-3-Clause AND MIT",
        "Requires-Dist: mlx-lm==0.32.*",
        "Requires-Dist: mlx==0.32.7",
        "Requires-Dist: mlx[cpu]==0.32.7; extra == 'cpu'",
        "Requires-Dist: mlx==0.32.* stands in the description",
    ]


@pytest.mark.pure
def test_a_module_of_other_sources_is_not_carried(wheel: Path, tmp_path: Path) -> None:
    """It would never be found: its key says what it was made from."""
    from scripts.wheel import Cargo, laden

    (plain,) = tmp_path.glob("*.whl")
    stale = Cargo(recipe.key_of("0.32.6", "3.1.0"), "0.32.7", "3.1.0", next(tmp_path.glob("*/lattice_cpu.*")))
    with pytest.raises(SystemExit, match="changed while the wheel was built"):
        laden(plain, stale, tmp_path)


@pytest.mark.pure
def test_every_file_of_the_wheel_is_in_its_record(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        rows = {row[0]: row[1:] for row in csv.reader(opened.read(f"{INFO}/RECORD").decode().splitlines())}
        assert list(rows) == opened.namelist()
        assert rows.pop(f"{INFO}/RECORD") == ["", ""]
        for name, (digest, size) in rows.items():
            data = opened.read(name)
            assert int(size) == len(data)
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    key = recipe.key_of("0.32.7", "3.1.0")
    assert f"lattice_cli/kernels/prebuilt/{key}/{recipe.FILE}" in rows


# Real wheels.


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "PYTHON"))}
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=900
    )


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_one_for_every_system(tmp_path: Path) -> None:
    where = {"PATH": str(tmp_path), "LATTICE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = run(sys.executable, ROOT / "scripts/wheel.py", tmp_path / "dist", cwd=tmp_path, **where)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "the wheel carries no compiled kernels: there is no C++ compiler here; to get them: sudo apt install g++\n"
    )
    assert [file.name for file in (tmp_path / "dist").iterdir()] == ["lattice_cli-0.1.0-py3-none-any.whl"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_the_kernels_of_the_wheel_run_without_compiler_and_nanobind(tmp_path: Path) -> None:
    from tests.tiny import write_tiny_folder

    made = {"LATTICE_HOME": str(CACHE), "PYTHONPATH": str(ROOT)}  # a compilation is kept between runs
    done = run(sys.executable, ROOT / "scripts/wheel.py", tmp_path / "dist", cwd=tmp_path, **made)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert run(sys.executable, "-m", "venv", "venv", cwd=tmp_path).returncode == 0
    python, lattice = tmp_path / "venv/bin/python", tmp_path / "venv/bin/lattice"
    done = run(python, "-m", "pip", "install", "-q", f"{wheel}[cpu]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run(python, "-c", "import nanobind", cwd=tmp_path).returncode == 1

    (tmp_path / "bin").mkdir()
    bare = {"PATH": str(tmp_path / "bin"), "LATTICE_HOME": str(tmp_path / "home")}
    done = run(lattice, "kernels", "status", "--json", cwd=tmp_path, **bare)
    said = json.loads(done.stdout)
    assert said["reason"] == "carried by the wheel"
    site = tmp_path / "venv/lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    assert Path(said["module"]).is_relative_to(site / "lattice_cli/kernels/prebuilt")
    model = write_tiny_folder(tmp_path / "tiny", "llama")
    done = run(lattice, "quantize", model, tmp_path / "packed", "--format", "mlx", cwd=tmp_path, **bare)
    assert done.returncode == 0, done.stderr
    ask = ("chat", "--model", tmp_path / "packed", "--prompt", "hi", "--max-tokens", "4", "--log-level", "info")
    done = run(lattice, *ask, cwd=tmp_path, **bare)
    assert done.returncode == 0, done.stderr
    assert f"INFO lattice.kernels: native kernels: {said['instructions']}" in done.stderr.splitlines()
    assert not (tmp_path / "home" / "kernels").exists()

    # Another mlx than the wheel's: nothing can be compiled here, and the way back is one command.
    (record,) = site.glob("mlx-0.32.*.dist-info")
    version = record.name.removeprefix("mlx-").removesuffix(".dist-info")
    text = (record / "METADATA").read_text().replace(f"\nVersion: {version}\n", "\nVersion: 0.32.99\n")
    (record / "METADATA").write_text(text)
    said = json.loads(run(lattice, "kernels", "status", "--json", cwd=tmp_path, **bare).stdout)
    assert said["reason"] == f"the wheel carries kernels for mlx {version}, and 0.32.99 is installed"
    assert said["hint"] == f"pip install 'mlx[cpu]=={version}'"
