"""The decision whether mlx can run, for machines we do not have.

Thread: any
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lattice_cli.errors import InstallError
from lattice_cli.kernels import machine as facts
from lattice_cli.kernels.machine import Machine, find_backends
from lattice_cli.kernels.platform import better_backend, diagnose, explain_import, guess_backend, install_command

pytestmark = pytest.mark.pure

CPU = Machine(system="Linux", arch="x86_64", backends=frozenset({"mlx-cpu"}), glibc=(2, 36))
BARE = replace(CPU, backends=frozenset())
CUDA13 = replace(CPU, backends=frozenset({"mlx-cuda-13"}), driver=(580, 65, 6))
MAC = Machine(system="Darwin", arch="arm64", backends=frozenset({"mlx-metal"}), macos=(15, 1))


@pytest.mark.parametrize("machine", [CPU, CUDA13, MAC, replace(CPU, arch="aarch64")])
def test_nothing_speaks_against_a_machine_that_works(machine: Machine) -> None:
    assert diagnose(machine) is None


@pytest.mark.parametrize(
    ("machine", "message", "hint"),
    [
        (BARE, "MLX has no back end here", "pip install 'lattice-cli[cpu]'"),
        (replace(BARE, driver=(580, 65, 6)), "MLX has no back end here", "pip install 'lattice-cli[cuda13]'"),
        (replace(BARE, driver=(560, 35, 3)), "MLX has no back end here", "pip install 'lattice-cli[cuda12]'"),
        (replace(BARE, driver=(535, 129, 3)), "MLX has no back end here", "pip install 'lattice-cli[cpu]'"),
        (
            replace(CPU, glibc=(2, 31)),
            "MLX needs glibc 2.35 or later, and this system has 2.31",
            "use a newer system, such as Ubuntu 22.04 or Debian 12, or a container of one",
        ),
        (
            replace(CPU, glibc=None),
            "MLX needs glibc, and this Linux has another C library",
            "use a glibc-based system",
        ),
        (replace(CPU, arch="riscv64"), "MLX has no build for Linux on riscv64", "use x86_64 or aarch64"),
        (
            replace(CUDA13, driver=(570, 86, 15)),
            "`mlx-cuda-13` needs NVIDIA driver 580.0 or later, and this machine has 570.86.15",
            "update the driver, or: pip uninstall -y mlx-cuda-13 && pip install 'lattice-cli[cuda12]'",
        ),
        (
            replace(CUDA13, backends=frozenset({"mlx-cuda-12"}), driver=(535, 129, 3)),
            "`mlx-cuda-12` needs NVIDIA driver 550.54 or later, and this machine has 535.129.3",
            "update the driver, or: pip uninstall -y mlx-cuda-12 && pip install 'lattice-cli[cpu]'",
        ),
        (
            replace(CUDA13, driver=None),
            "`mlx-cuda-13` needs NVIDIA driver 580.0 or later, and no driver was found here",
            "update the driver, or: pip uninstall -y mlx-cuda-13 && pip install 'lattice-cli[cpu]'",
        ),
        (
            replace(MAC, arch="x86_64", translated=True),
            "This Python is built for Intel and runs under Rosetta; MLX needs one built for Apple silicon",
            "install an arm64 Python (`brew install python` in an arm64 shell) and lattice-cli with it",
        ),
        (
            replace(MAC, arch="x86_64"),
            "MLX needs Apple silicon, and this Mac has an Intel processor",
            "use Linux or a newer Mac",
        ),
        (replace(MAC, macos=(13, 6)), "MLX needs macOS 14.0 or later, and this is 13.6", "update macOS"),
        (
            replace(MAC, backends=frozenset()),
            "MLX has no back end here",
            "pip install --force-reinstall mlx mlx-metal",
        ),
        (
            Machine(system="Windows", arch="AMD64", backends=frozenset()),
            "MLX does not run on Windows: it needs Linux or macOS",
            "on Windows, use WSL2",
        ),
    ],
)
def test_a_machine_that_cannot_run_mlx_gets_one_sentence_and_a_command(
    machine: Machine, message: str, hint: str
) -> None:
    """Reports 139 and 141: a linker error, or "no matching distribution", told the user nothing."""
    error = diagnose(machine)
    assert isinstance(error, InstallError)
    assert (error.message, error.hint, error.exit_code) == (message, hint, 3)


@pytest.mark.parametrize(
    ("machine", "reason", "message", "hint"),
    [
        (
            CPU,
            "libmlx.so: cannot open shared object file: No such file or directory",
            "MLX cannot be loaded: libmlx.so: cannot open shared object file: No such file or directory",
            "pip install --force-reinstall --no-deps mlx mlx-cpu",
        ),
        (
            replace(CUDA13, backends=frozenset({"mlx-cpu", "mlx-cuda-13"})),
            "undefined symbol: x\nmore",
            "MLX cannot be loaded: 2 back ends are installed over each other (mlx-cpu mlx-cuda-13)",
            "pip uninstall -y mlx mlx-cpu mlx-cuda-13 && pip install 'lattice-cli[cuda13]'",
        ),
        (
            CPU,
            "bad things\nmore of them",
            "MLX cannot be loaded: bad things",
            "pip install 'lattice-cli[cpu]'",
        ),
    ],
)
def test_an_import_that_fails_all_the_same_is_explained(machine: Machine, reason: str, message: str, hint: str) -> None:
    """Report 139: two back ends in one environment overwrite each other's libmlx.so."""
    error = explain_import(machine, reason)
    assert (error.message, error.hint, error.exit_code) == (message, hint, 3)


@pytest.mark.parametrize(
    ("machine", "backend"),
    [(CPU, "cpu"), (CUDA13, "cuda"), (MAC, "metal"), (BARE, "none"), (replace(CPU, driver=(580, 0)), "cpu")],
)
def test_the_back_end_is_guessed_without_importing_mlx(machine: Machine, backend: str) -> None:
    assert guess_backend(machine) == backend


def test_a_cpu_install_beside_a_gpu_is_told_what_would_be_better() -> None:
    assert better_backend(CPU) is None
    assert better_backend(CUDA13) is None
    better = "pip uninstall -y mlx-cpu && pip install 'lattice-cli[cuda13]'"
    assert better_backend(replace(CPU, driver=(580, 65, 6))) == better


def test_a_driver_too_old_for_cuda_means_the_cpu_extra() -> None:
    assert install_command(replace(BARE, driver=(470, 1))) == "pip install 'lattice-cli[cpu]'"


def test_this_machine_can_be_read() -> None:
    """Report 140: device queries must not raise where a tool or a file is absent."""
    found = facts.read_machine()
    assert found.system in ("Linux", "Darwin")
    assert found.arch


def test_a_back_end_is_a_package_or_the_library_of_a_self_built_mlx(tmp_path: Path) -> None:
    """An mlx built from source has no back-end package, and must not be refused for that."""
    bare, built = tmp_path / "bare", tmp_path / "built"
    (built / "lib").mkdir(parents=True)
    (built / "lib/libmlx.so").touch()
    packages = tmp_path / "mlx_cuda_13-0.32.4.dist-info"
    packages.mkdir()
    (packages / "METADATA").write_text("Metadata-Version: 2.1\nName: mlx-cuda-13\nVersion: 0.32.4\n")
    assert find_backends([], [bare]) == frozenset()
    assert find_backends([], [built]) == {"mlx"}
    assert find_backends([str(tmp_path)], [built]) == {"mlx-cuda-13"}
