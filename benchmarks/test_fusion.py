"""Growth of the optimal gradient fusion with the number of tensors.

Measured with ``python -m pytest benchmarks/test_fusion.py`` on one core of a server, CPython 3.11; medians in ms:

=======  =====  =====  ======
tensors  100    1,000  10,000
=======  =====  =====  ======
affine   0.11   0.63   6.1
general  1.0    12     270
=======  =====  =====  ======

Affine grows as n. General is O(n^2), but 10 times the tensors take 23 times as long: the n array calls still weigh.
"""

from typing import Any

import numpy as np
import pytest

from planner.cost import Affine, Floats
from planner.solvers.fusion import optimal_groups

AFFINE = Affine(startup_s=3e-3, per_byte_s=1e-9)


def log_linear(size_bytes: Floats) -> Floats:
    """Equation 18 of the OSF paper, continuous at 1 MB."""
    return np.where(size_bytes < 1e6, 2e-4 * np.log2(size_bytes), 2e-4 * np.log2(1e6) + 1e-9 * (size_bytes - 1e6))


def tensors(num_tensors: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(0)
    return np.cumsum(rng.exponential(1e-3, num_tensors)), rng.integers(0, 2_000_000, num_tensors).astype(np.float64)


@pytest.mark.parametrize("num_tensors", [100, 1_000, 10_000])
def test_affine(benchmark: Any, num_tensors: int) -> None:
    benchmark(optimal_groups, *tensors(num_tensors), AFFINE)


@pytest.mark.parametrize("num_tensors", [100, 1_000, 10_000])
def test_general(benchmark: Any, num_tensors: int) -> None:
    benchmark.pedantic(optimal_groups, (*tensors(num_tensors), log_linear), rounds=1 if num_tensors == 10_000 else 5)
