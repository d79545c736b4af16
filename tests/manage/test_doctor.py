"""What doctor finds on machines in several states, and its exit status.

Thread: any
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from lattice_cli import __version__
from lattice_cli.manage.doctor import rows, versions_line
from lattice_cli.manage.examination import Missing, examine
from lattice_cli.settings import Home
from tests.tiny import write_json, write_tiny_folder


def home_with(tmp_path: Path, default: str = "tiny", **options: str) -> Home:
    return Home(tmp_path, tmp_path / "models", default_model=default, **options)


@pytest.mark.tiny
def test_a_machine_that_is_ready(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "models" / "tiny")
    write_json(folder / "generation_config.json", {"temperature": 0.6, "top_k": 20})
    found = examine(home_with(tmp_path))
    assert [missing for missing in found.missing if missing.blocks] == []
    assert found.ready
    assert found.models == ("tiny",)
    assert found.gflops is not None
    assert found.gflops > 0.5
    assert found.backend in ("cpu", "cuda", "metal")
    assert found.sampling == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": None,
    }
    assert ("models", "tiny") in rows(found)


@pytest.mark.tiny
@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("qwen3.5", "tools, called in qwen3_coder; thinks, can be switched"),
        ("qwen3", "tools, called in json; may think, can be switched"),
        ("smollm3", "no tools (see --tool-fallback); may think, can be switched"),
        (None, "no tools (see --tool-fallback); no switch for thinking"),
    ],
)
def test_what_the_default_models_template_can_do(tmp_path: Path, template: str | None, line: str) -> None:
    folder = write_tiny_folder(tmp_path / "models" / "tiny")
    if template:
        source = Path(__file__).parents[2] / "fixtures" / "templates" / f"{template}.jinja"
        (folder / "chat_template.jinja").write_text(source.read_text())
    assert ("template", line) in rows(examine(home_with(tmp_path)))


@pytest.mark.tiny
def test_a_fresh_home_is_told_how_to_get_the_default_model(tmp_path: Path) -> None:
    found = examine(home_with(tmp_path / "not" / "there", default="smollm2-135m"))
    assert not found.ready
    assert [missing for missing in found.missing if missing.blocks] == [
        Missing("the default model: `smollm2-135m` is not on this machine", "run `lattice pull smollm2-135m`")
    ]
    assert found.models == ()
    assert found.sampling is None
    assert found.free_bytes is not None
    assert not (tmp_path / "not").exists(), "doctor makes nothing"


@pytest.mark.tiny
def test_a_broken_model_beside_a_good_one_is_advice(tmp_path: Path) -> None:
    write_tiny_folder(tmp_path / "models" / "tiny")
    broken = write_tiny_folder(tmp_path / "models" / "broken")
    (broken / "config.json").unlink()
    found = examine(home_with(tmp_path))
    assert found.ready
    assert found.models == ("tiny",)
    assert Missing(f"model `broken`: `{broken / 'config.json'}` is missing", None, blocks=False) in found.missing


@pytest.mark.pure
def test_the_version_line_names_what_answers_depend_on() -> None:
    line = versions_line()
    assert line.startswith(f"lattice {__version__} (mlx 0.")
    assert ", mlx-lm 0." in line


# In processes of their own.


def lattice(*arguments: str, home: Path, path: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `lattice`; `path` replaces this environment's site-packages."""
    isolated = ["-S", "-B"] if path else []
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    root = str(Path(__file__).parents[2])
    places = [root, str(path)] if path else [root]
    return subprocess.run(
        [sys.executable, *isolated, "-m", "lattice_cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, "LATTICE_HOME": str(home), "HOME": str(home), "PYTHONPATH": os.pathsep.join(places), **env},
    )


@pytest.mark.wire
def test_exit_status_and_json(tmp_path: Path) -> None:
    """0 when ready, 1 when not; stdout is one JSON object, talk is on stderr."""
    write_tiny_folder(tmp_path / "models" / "tiny")
    ready = lattice("doctor", "--json", home=tmp_path, LATTICE_SERVE_MODEL="tiny")
    assert ready.returncode == 0, ready.stderr
    assert json.loads(ready.stdout)["ready"] is True
    missing = lattice("doctor", home=tmp_path)
    assert missing.returncode == 1
    assert missing.stderr.endswith(
        "missing: the default model: `smollm2-135m` is not on this machine\nhint: run `lattice pull smollm2-135m`\n"
    )
    assert "back end" in missing.stdout


@pytest.mark.wire
def test_a_wrong_blas_is_named_and_not_used(tmp_path: Path) -> None:
    if not installed_for_cpu():
        pytest.skip("only on a Linux CPU do we choose the BLAS")
    done = lattice("doctor", "--json", home=tmp_path, LATTICE_BLAS="/no/such/library.so")
    assert done.returncode == 1
    assert json.loads(done.stdout)["missing"][0] == {
        "what": "`LATTICE_BLAS` is `/no/such/library.so`, which does not exist",
        "hint": "give the path of an OpenBLAS library, `none` for mlx's own, or leave it unset",
        "blocks": True,
    }


def installed_for_cpu() -> bool:
    from lattice_cli.kernels.machine import installed_backends

    return sys.platform == "linux" and installed_backends() == {"mlx-cpu"}


def site_packages_without(farm: Path, *, dist_info: bool) -> Path:
    """This environment with mlx's library left out, and with `dist_info` also the record of its package."""
    site = Path(sysconfig.get_paths()["purelib"])
    farm.mkdir()
    for entry in site.iterdir():
        if entry.name != "mlx" and not (dist_info and entry.name.startswith("mlx_cpu-")):
            (farm / entry.name).symlink_to(entry)
    (farm / "mlx" / "lib").mkdir(parents=True)
    for entry in (site / "mlx").iterdir():
        if entry.name != "lib":
            (farm / "mlx" / entry.name).symlink_to(entry)
    # The bindings look for their library beside themselves: a link would lead them to the real one.
    for entry in (site / "mlx").glob("core*.so"):
        (farm / "mlx" / entry.name).unlink()
        (farm / "mlx" / entry.name).write_bytes(entry.read_bytes())
    return farm


@pytest.mark.wire
def test_a_linux_install_without_a_back_end(tmp_path: Path) -> None:
    """Report 139: `pip install` of the bindings alone. Help works, and each command names the command to run."""
    if not installed_for_cpu():
        pytest.skip("a Linux install for the CPU is what gets damaged here")
    site = site_packages_without(tmp_path / "site", dist_info=True)
    folder = write_tiny_folder(tmp_path / "models" / "tiny")
    assert lattice("--help", home=tmp_path, path=site).returncode == 0
    assert "no back end" in lattice("--version", home=tmp_path, path=site).stdout
    doctor = lattice("doctor", "--json", home=tmp_path, path=site, LATTICE_SERVE_MODEL="tiny")
    assert doctor.returncode == 1, doctor.stderr
    said = json.loads(doctor.stdout)
    assert (said["backend"], said["gflops"], said["models"]) == ("none", None, ["tiny"])
    hint = "pip install 'lattice-cli[cpu]'"
    assert said["missing"] == [{"what": "MLX has no back end here", "hint": hint, "blocks": True}]
    chat = lattice("chat", "--model", str(folder), "--prompt", "hi", home=tmp_path, path=site)
    assert chat.returncode == 3
    assert chat.stdout == ""
    assert chat.stderr.endswith(f"error: MLX has no back end here\n\nhint: {hint}\n")
    assert "Traceback" not in chat.stderr


@pytest.mark.wire
def test_a_back_end_whose_library_is_gone(tmp_path: Path) -> None:
    """Report 139: the linker's error, as one sentence with the command that mends it."""
    if not installed_for_cpu():
        pytest.skip("a Linux install for the CPU is what gets damaged here")
    site = site_packages_without(tmp_path / "site", dist_info=False)
    done = lattice("doctor", "--json", home=tmp_path, path=site)
    assert done.returncode == 1
    missing = json.loads(done.stdout)["missing"][0]
    assert missing["what"] == (
        "MLX cannot be loaded: libmlx.so: cannot open shared object file: No such file or directory"
    )
    assert missing["hint"] == "pip install --force-reinstall --no-deps mlx mlx-cpu"
