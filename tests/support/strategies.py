"""Inputs that hypothesis draws for more than one test file."""

import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from planner.cost import Affine, Floats
from planner.dnn import Dnn, Layer


def chain(*layers: Layer) -> Dnn:
    """A network of layers, each of which reads the one before it."""
    return Dnn("chain", [(one, [layers[at - 1].name] if at else []) for at, one in enumerate(layers)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinear:
    """Equation 18 of the OSF paper, clipped at 0: ``a1 log2 D + b1`` below the threshold, else ``a2 D + b2``."""

    a1: float
    b1: float
    a2: float
    b2: float
    threshold_bytes: float

    def __call__(self, size_bytes: Floats, /) -> Floats:
        below = self.a1 * np.log2(np.maximum(size_bytes, 1)) + self.b1
        seconds = np.where(size_bytes < self.threshold_bytes, below, self.a2 * size_bytes + self.b2)
        return np.where(size_bytes > 0, np.maximum(seconds, 0), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """Gradients in ready order."""

    ready_s: Floats
    size_bytes: Floats


def tensors(max_size: int, min_size: int = 1, min_bytes: int = 0) -> st.SearchStrategy[Tensors]:
    """Small whole numbers: sums are exact, and ties, equal ready times and empty tensors are common."""
    one = st.tuples(st.integers(0, 12), st.integers(min_bytes, 20) | st.just(min_bytes))
    return st.lists(one, min_size=min_size, max_size=max_size).map(
        lambda pairs: Tensors(
            ready_s=np.cumsum([float(gap) for gap, _ in pairs]),
            size_bytes=np.array([float(size) for _, size in pairs]),
        )
    )


affine_costs = st.builds(
    Affine, startup_s=st.integers(0, 20).map(float), per_byte_s=st.sampled_from([0.0, 0.1, 0.25, 1.0, 3.0])
)
log_linear_costs = st.builds(
    LogLinear,
    a1=st.floats(0, 4),
    b1=st.floats(-3, 6),
    a2=st.floats(0, 2),
    b2=st.floats(-5, 5),
    threshold_bytes=st.integers(1, 80).map(float),
)
timeouts_s = st.sampled_from([math.inf, 0.0, 3.0, 7.5])


def in_the_papers_order(given: Tensors) -> tuple[list[float], list[float]]:
    """Return D(1..n) and t_b(1..n): layer 1 first, where gradients in ready order begin with layer n."""
    backward_s = np.diff(given.ready_s, prepend=0)
    return given.size_bytes[::-1].tolist(), backward_s[::-1].tolist()
