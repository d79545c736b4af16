"""What holds for every test.

Thread: any
"""

from __future__ import annotations

from lattice_cli.kernels import blas
from lattice_cli.settings import read_home

# The BLAS must be in the process before the first test module imports mlx; it imports no mlx itself.
blas.preload(read_home())
