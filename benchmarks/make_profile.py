"""Measure a small residual network on this machine's CPU and print it as an operator graph in PipeDream's text format.

python benchmarks/make_profile.py > residual-mlp.graph.txt
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
EDGES = ((1, 2), (2, 3), (3, 4), (2, 4), (4, 5))  # the sum reads both the block and what goes round it


def median_ms(operator: Callable[[], object], repeats: int) -> float:
    operator()  # the first run fills caches and starts threads
    spans = []
    for _ in range(repeats):
        start = time.perf_counter()
        operator()
        spans.append(time.perf_counter() - start)
    return 1e3 * statistics.median(spans)


def profile(batch: int, width: int, repeats: int, random: np.random.Generator) -> list[str]:
    """Time forward and backward of linear, relu, linear, add, linear."""

    def draw(*shape: int) -> Array:
        return random.standard_normal(shape, dtype=np.float32)

    def line(number: int, what: str, forward: Callable[[], object], backward: Callable[[], object], size: int) -> str:
        ahead, back = median_ms(forward, repeats), median_ms(backward, repeats)
        figures = f"activation_size={4 * batch * width:.1f}, parameter_size={4 * size:.1f}"
        times = f"forward_compute_time={ahead:.4f}, backward_compute_time={back:.4f}"
        return f"node{number} -- {what} -- {times}, {figures}"

    given, gradient, weight, bias = draw(batch, width), draw(batch, width), draw(width, width), draw(width)

    def linear() -> Array:
        return given @ weight + bias

    def linear_backward() -> tuple[Array, Array, Array]:
        return gradient @ weight.T, given.T @ gradient, gradient.sum(axis=0)

    def relu() -> Array:
        return np.maximum(given, 0)

    def relu_backward() -> Array:
        return gradient * (given > 0)

    def add() -> Array:
        return given + gradient

    def add_backward() -> tuple[Array, Array]:
        return gradient.copy(), gradient.copy()

    dense = (f"Linear(in_features={width}, out_features={width}, bias=True)", linear, linear_backward, width**2 + width)
    plan = (dense, ("ReLU()", relu, relu_backward, 0), dense, ("Add()", add, add_backward, 0), dense)
    rows = [line(number, *operator) for number, operator in enumerate(plan, start=1)]
    return rows + [f"\tnode{first} -- node{second}" for first, second in EDGES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=51)
    asked = parser.parse_args()
    chip = " ".join(dict.fromkeys(part for part in (platform.processor(), platform.machine()) if part))
    print(
        f"# A residual MLP of width {asked.width}, fp32, batch {asked.batch}; every operator alone, in ms for the "
        f"batch:"
    )
    print(f"# median of {asked.repeats} runs with numpy {np.__version__} on a CPU ({chip}, {os.cpu_count()} cores).")
    print("# Written by benchmarks/make_profile.py. Operators of one kind and shape are timed separately.")
    print("\n".join(profile(asked.batch, asked.width, asked.repeats, np.random.default_rng(0))))


if __name__ == "__main__":
    main()
