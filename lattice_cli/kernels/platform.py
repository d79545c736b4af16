"""Whether mlx can run here, decided from facts before mlx is imported; one sentence when it cannot.

Knows operating systems, package names and driver versions. The decision is a pure function of
`Machine`, so that it is tested without the machines (reports 139, 140, 141).

Thread: any
"""

from __future__ import annotations

import sys
from typing import Literal

from lattice_cli.errors import InstallError
from lattice_cli.kernels.machine import Machine, Version, read_machine

BackendName = Literal["cpu", "cuda", "metal", "none"]

# What the wheels of mlx 0.32 ask for (their tags, and ml-explore/mlx docs/src/install.rst).
_GLIBC = (2, 35)
_MACOS = (14, 0)
_DRIVERS = {"mlx-cuda-12": (550, 54), "mlx-cuda-13": (580, 0)}


def check_platform() -> None:
    """Make sure that mlx can be imported, and import it. Cost: 10-100 ms.

    On a Linux CPU call `blas.preload` first. Raises: InstallError, one sentence and a hint.
    """
    machine = read_machine()
    error = diagnose(machine)
    if error:
        raise error
    try:
        import mlx.core  # noqa: F401
    except (ImportError, OSError) as failure:
        raise explain_import(machine, str(failure)) from failure


def backend_name() -> BackendName:
    """Where mlx computes. Asks mlx when it is imported already, else guesses from what is installed."""
    mx = sys.modules.get("mlx.core")
    if mx is None:
        return guess_backend(read_machine())
    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


def guess_backend(machine: Machine) -> BackendName:
    """The back end a machine will most likely use."""
    if diagnose(machine) is not None:
        return "none"
    if machine.system == "Darwin":
        return "metal"
    return "cuda" if machine.driver and machine.backends - {"mlx-cpu"} else "cpu"


def device_name() -> str:
    """mlx's default device as people know it. mlx must have been imported."""
    import mlx.core as mx

    name = mx.device_info().get("device_name")
    return str(name) if name else str(mx.default_device())


def better_backend(machine: Machine) -> str | None:
    """The command for a CPU install beside a usable NVIDIA GPU; None where there is nothing better. Pure."""
    command = install_command(machine)
    if machine.backends != {"mlx-cpu"} or "[cpu]" in command:
        return None
    return f"pip uninstall -y mlx-cpu && {command}"


def diagnose(machine: Machine) -> InstallError | None:
    """Why mlx cannot run on a machine, None when nothing speaks against it. Pure."""
    if machine.system == "Darwin":
        return _diagnose_macos(machine)
    if machine.system != "Linux":
        return InstallError(
            f"MLX does not run on {machine.system}: it needs Linux or macOS", hint="on Windows, use WSL2"
        )
    if machine.arch not in ("x86_64", "aarch64"):
        return InstallError(f"MLX has no build for Linux on {machine.arch}", hint="use x86_64 or aarch64")
    if machine.glibc is None:
        return InstallError("MLX needs glibc, and this Linux has another C library", hint="use a glibc-based system")
    if machine.glibc < _GLIBC:
        return InstallError(
            f"MLX needs glibc {_dotted(_GLIBC)} or later, and this system has {_dotted(machine.glibc)}",
            hint="use a newer system, such as Ubuntu 22.04 or Debian 12, or a container of one",
        )
    if not machine.backends:
        return no_backend(machine)
    return _diagnose_driver(machine)


def no_backend(machine: Machine) -> InstallError:
    """A Linux install without a back end: the command that brings the right one."""
    return InstallError("MLX has no back end here", hint=install_command(machine))


def install_command(machine: Machine) -> str:
    """The pip command for a machine: CUDA where the driver allows it, else the CPU."""
    extra = "cpu"
    if machine.driver and machine.driver >= _DRIVERS["mlx-cuda-12"]:
        extra = "cuda13" if machine.driver >= _DRIVERS["mlx-cuda-13"] else "cuda12"
    return f"pip install 'lattice-cli[{extra}]'"


def _diagnose_macos(machine: Machine) -> InstallError | None:
    if machine.arch == "x86_64" and machine.translated:
        return InstallError(
            "This Python is built for Intel and runs under Rosetta; MLX needs one built for Apple silicon",
            hint="install an arm64 Python (`brew install python` in an arm64 shell) and lattice-cli with it",
        )
    if machine.arch == "x86_64":
        return InstallError(
            "MLX needs Apple silicon, and this Mac has an Intel processor", hint="use Linux or a newer Mac"
        )
    if machine.macos and machine.macos < _MACOS:
        return InstallError(
            f"MLX needs macOS {_dotted(_MACOS)} or later, and this is {_dotted(machine.macos)}", hint="update macOS"
        )
    if not machine.backends:
        return InstallError("MLX has no back end here", hint="pip install --force-reinstall mlx mlx-metal")
    return None


def _diagnose_driver(machine: Machine) -> InstallError | None:
    """Only for installs that hold CUDA alone: beside `mlx-cpu` there is something to fall back to."""
    if "mlx-cpu" in machine.backends:
        return None
    package = max(machine.backends & _DRIVERS.keys(), default=None)
    if package is None or (machine.driver and machine.driver >= _DRIVERS[package]):
        return None
    have = f"and this machine has {_dotted(machine.driver)}" if machine.driver else "and no driver was found here"
    return InstallError(
        f"`{package}` needs NVIDIA driver {_dotted(_DRIVERS[package])} or later, {have}",
        hint=f"update the driver, or: pip uninstall -y {package} && {install_command(machine)}",
    )


def explain_import(machine: Machine, reason: str) -> InstallError:
    """The sentence for an `import mlx.core` that failed although nothing spoke against it."""
    if len(machine.backends) > 1:
        several = " ".join(sorted(machine.backends))
        return InstallError(
            f"MLX cannot be loaded: {len(machine.backends)} back ends are installed over each other ({several})",
            hint=f"pip uninstall -y mlx {several} && {install_command(machine)}",
        )
    if "libmlx" in reason and machine.system == "Linux":
        package = next(iter(machine.backends), "mlx-cpu")
        return InstallError(
            f"MLX cannot be loaded: {_first_line(reason)}",
            hint=f"pip install --force-reinstall --no-deps mlx {package}",
        )
    return InstallError(f"MLX cannot be loaded: {_first_line(reason)}", hint=install_command(machine))


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
