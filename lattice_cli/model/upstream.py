"""What must be true around an import of mlx_lm.

Thread: any
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_patching = Lock()


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
