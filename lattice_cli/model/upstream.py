"""What must be true around an import of mlx_lm.

Thread: any
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from types import ModuleType
from typing import Any

_patching = RLock()  # an import inside the block may come here again


@contextmanager
def file_limit_kept() -> Iterator[None]:
    """Import mlx_lm inside this block, or lose file descriptors.

    UPSTREAM: `import mlx_lm.utils` (0.32) sets RLIMIT_NOFILE to soft 2048 and hard 4096; a hard limit
    cannot be raised again without privilege, so the call is turned aside while the import runs.
    Costs nothing once mlx_lm is imported.
    """
    if "mlx_lm.utils" in sys.modules or sys.platform == "win32":
        yield
        return
    import resource

    real = resource.setrlimit

    def guarded(which: int, limits: Any) -> None:
        if which != resource.RLIMIT_NOFILE:
            real(which, limits)

    with _patching:
        resource.setrlimit = guarded
        try:
            yield
        finally:
            resource.setrlimit = real


@contextmanager
def light_import() -> Iterator[None]:
    """Inside this block `mlx_lm.models.*` imports without transformers, which would cost half a second and more.

    UPSTREAM: mlx_lm's own `__init__` (0.32) imports its command line's modules and with them transformers.
    Here the package stands in sys.modules before its `__init__` ran; that happens when somebody asks it for a
    name that is not a module of it.
    """
    if "mlx_lm" not in sys.modules:
        spec = importlib.util.find_spec("mlx_lm")
        if spec is not None and spec.loader is not None:
            package = importlib.util.module_from_spec(spec)
            package.__getattr__ = _full_import(package)  # type: ignore[method-assign]
            sys.modules["mlx_lm"] = package
    with file_limit_kept():
        yield


def _full_import(package: ModuleType) -> Any:
    def load_name(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        del package.__getattr__
        spec = package.__spec__
        assert spec is not None and spec.loader is not None
        with file_limit_kept():
            spec.loader.exec_module(package)
        return getattr(package, name)

    return load_name
