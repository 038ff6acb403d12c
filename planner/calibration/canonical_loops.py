"""The canonical loops of the Adam model, run on this machine: what C_muladd, C_act, C_err and C_interf are here.

Source: F. Yan, O. Ruwase, Y. He and T. Chilimbi, KDD 2015, doi:10.1145/2783258.2783270, sections 4.1.1 to 4.2.1,
figure 5 and eq. 9. Its inner loop is one call of numpy here, in single precision and one thread: "estimation accuracy
of the canonical code can be improved by incorporating optimizations from real-world DNN implementations".
"""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
from numpy.typing import NDArray

from planner.answer.text import table
from planner.errors import ModelError
from planner.frozen import frozen
from planner.shown import document_of
from planner.units import Dimension, format_human
from planner.words import time_words

_NUMBER = np.dtype(np.float32)
_FAN_IN = 1024  # connections of a neuron
_NUM_NEURONS = 2**16  # of the activation and error loops
_PASSES_OVER = 2**22  # multiply-adds (or neurons) of one timed run, at least
_WORKING_SETS_BYTES = tuple(2**power for power in (18, 20, 22, 24, 26))
_SHARED_BYTES = 2**22  # weights that the threads share


@frozen
class Calibration:
    """Constants of this machine, as :mod:`planner.models.replicas` takes them."""

    # ``C_muladd``: working set in bytes, and seconds of one multiply-add; ascending
    multiply_add_s: tuple[tuple[float, float], ...]
    # activation_s, error_s: ``C_act`` and ``C_err``, of a neuron: a hyperbolic tangent; an error term times its
    # derivative
    activation_s: float
    error_s: float
    # ``C_interf``: number of threads, and by how much they slow each other down; at least 1
    interference: tuple[tuple[int, float], ...]
    num_cores: int
    number_bytes: int = _NUMBER.itemsize

    def to_document(self) -> dict[str, object]:
        """Return ``planner.calibration/1``."""
        return {
            "schema": "planner.calibration/1",
            **document_of(self, "number_bytes", "num_cores"),
            "multiply_add": [{"working_set_bytes": size, "seconds": seconds} for size, seconds in self.multiply_add_s],
            **document_of(self, "activation_s", "error_s"),
            "interference": [{"num_threads": number, "factor": factor} for number, factor in self.interference],
        }

    def text(self) -> str:
        """Return the constants as tables."""
        multiply_adds = [
            {
                "working set": format_human(size, Dimension.DATA),
                "a multiply-add": time_words(seconds),
                "GFLOP/s": round(2e-9 / seconds, 2),
            }
            for size, seconds in self.multiply_add_s
        ]
        threads = [{"threads": number, "interference": round(factor, 3)} for number, factor in self.interference]
        neuron = f"An activation takes {time_words(self.activation_s)}, an error term {time_words(self.error_s)}."
        return "\n".join([table(multiply_adds), "", table(threads), "", neuron])


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure(
    *,
    working_sets_bytes: Sequence[int] = _WORKING_SETS_BYTES,
    num_threads: Sequence[int] | None = None,
    num_repeats: int = 3,
) -> Calibration:
    """Run the loops, a second or so by default, and return the best time of each.

    Parameters
    ----------
    working_sets_bytes
        Of the weights. Below 256 KiB the call itself, about a microsecond, would count.
    num_threads
        How many at a time; 1, 2, 4 and so on up to all cores if left out.

    Raises
    ------
    ModelError
        For more threads than cores (C2), or a working set of less than one neuron's weights.
    """
    cores = available_cores()
    powers = (*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores)
    threads = sorted({1, *(powers if num_threads is None else num_threads)})
    sizes = sorted(set(working_sets_bytes))
    if not 1 <= threads[0] <= threads[-1] <= cores:
        raise ModelError(f"C2: {threads[0]} to {threads[-1]} threads; this machine has {cores} cores.")
    least = _FAN_IN * _NUMBER.itemsize
    if not sizes or sizes[0] < least or num_repeats < 1:
        hint = f"give sets of at least {least} bytes and 1 repeat."
        raise ModelError(f"working sets {sizes} bytes, {num_repeats} repeats; {hint}")
    sums, activations = (np.linspace(-end, end, _NUM_NEURONS, dtype=_NUMBER) for end in (2, 0.9))
    ones, out = np.ones_like(sums), np.empty_like(sums)

    def errors() -> None:
        """Compute the weighted error terms times ``f'(a_i)``, eq. 3."""
        np.multiply(activations, activations, out=out)
        np.subtract(1, out, out=out)
        np.multiply(ones, out, out=out)

    multiply_add_s = []
    for size in sizes:
        weights = _weights(size)
        multiply_add_s.append((float(size), _best_s(_weighted_sums(weights), weights.size, num_repeats)))
    seconds = {number: _together_s(number, num_repeats) for number in threads}
    return Calibration(
        multiply_add_s=tuple(multiply_add_s),
        activation_s=_best_s(lambda: np.tanh(sums, out=out), _NUM_NEURONS, num_repeats),
        error_s=_best_s(errors, _NUM_NEURONS, num_repeats),
        # C_interf(H): the time of H threads that run the same loop at once, over that of one (eq. 9).
        interference=tuple((number, max(1.0, taken_s / seconds[1])) for number, taken_s in seconds.items()),
        num_cores=cores,
    )


# -- the loops of figure 5 -------------------------------------------------------------------------------------------


def _weights(size_bytes: int) -> NDArray[np.float32]:
    return np.full((size_bytes // (_FAN_IN * _NUMBER.itemsize), _FAN_IN), 0.5, dtype=_NUMBER)


def _weighted_sums(weights: NDArray[np.float32]) -> Callable[[], object]:
    """Return ``y_i += w_ij a_j`` over all weights."""
    activations, sums = np.ones(_FAN_IN, dtype=_NUMBER), np.empty(len(weights), dtype=_NUMBER)
    # Not @, whose library would start threads of its own.
    return lambda: np.einsum("ij,j->i", weights, activations, out=sums)


def _together_s(num_threads: int, num_repeats: int) -> float:
    """Return the seconds of the slowest of so many threads, each with its own core; the best of all repeats."""
    weights = _weights(_SHARED_BYTES)
    loops = [_weighted_sums(weights) for _ in range(num_threads)]
    barrier = Barrier(num_threads)

    def run(loop: Callable[[], object]) -> float:
        barrier.wait()
        return _seconds_of(loop, _passes(weights.size))

    with ThreadPoolExecutor(num_threads) as pool:
        return min(max(pool.map(run, loops)) for _ in range(num_repeats))


# -- time ------------------------------------------------------------------------------------------------------------


def _passes(size: int) -> int:
    """Return how often to run a loop of so many steps."""
    return max(1, _PASSES_OVER // size)


def _best_s(loop: Callable[[], object], size: int, num_repeats: int) -> float:
    """Return the seconds of one step of a loop, the best of all repeats after one to warm up."""
    loop()
    passes = _passes(size)
    return min(_seconds_of(loop, passes) for _ in range(num_repeats)) / (passes * size)


def _seconds_of(loop: Callable[[], object], passes: int) -> float:
    start_s = time.perf_counter()
    for _ in range(passes):
        loop()
    return time.perf_counter() - start_s
