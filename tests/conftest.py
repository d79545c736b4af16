"""What holds for every test.

Thread: any
"""

from __future__ import annotations

import os

from lattice_cli.kernels import blas
from lattice_cli.settings import read_home

# Each home of a test would compile the native kernels anew, half a minute each; their own tests ask for them.
os.environ.setdefault("LATTICE_KERNELS", "off")

# The BLAS must be in the process before the first test module imports mlx; it imports no mlx itself.
blas.preload(read_home())
