"""The bound of all pipelines at once, against every pipeline simulated."""

from itertools import combinations, pairwise, product
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models.schedule import PipelineTimes, simulate
from planner.solvers.chain import Line, fits, least_s

ENOUGH = 99
works = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4)


def line_of(work_s: list[float], num_devices: int, room: int = ENOUGH) -> Line:
    """A line on equal devices; ``room``: micro-batches in flight that one layer leaves room for, fewer where more."""
    layers = np.arange(len(work_s))
    lengths = layers[None, :] - layers[:, None] + 1
    most = np.where(lengths > 0, room // np.maximum(lengths, 1), 0)
    return Line(work_s=np.array(work_s), most_in_flight=most, speed=float(num_devices), fastest=1.0)


def simulated_s(work_s: list[float], share: float, num_devices: int, batch: int, number: int, room: int) -> float:
    """The fastest of all pipelines: every cut, all replicas, both schedules."""
    size, best = ceil(batch / number), inf
    for p in range(1, min(len(work_s), num_devices) + 1):
        for cuts in combinations(range(1, len(work_s)), p - 1):
            runs = list(pairwise((0, *cuts, len(work_s))))
            for replicas in product(range(1, size + 1), repeat=p):
                if sum(replicas) > num_devices:
                    continue
                seconds = [ceil(size / r) * sum(work_s[i:j]) for (i, j), r in zip(runs, replicas, strict=True)]
                for schedule in ("1f1b", "gpipe"):
                    held = [number if schedule == "gpipe" else min(number, p - s) for s in range(p)]
                    if any(room // (j - i) < many for (i, j), many in zip(runs, held, strict=True)):
                        continue
                    times = PipelineTimes(
                        forward_s=[share * one for one in seconds], backward_s=[(1 - share) * one for one in seconds]
                    )
                    run = simulate(times, num_microbatches=number, schedule=schedule)
                    best = min(best, run.makespan_s)
    return best


@given(works, st.floats(0.1, 0.9), st.integers(1, 5), st.integers(1, 6), st.data())
def test_no_simulated_pipeline_is_below_the_bound(
    work_s: list[float], share: float, num_devices: int, batch: int, data: st.DataObject
) -> None:
    number, room = data.draw(st.integers(1, batch)), data.draw(st.sampled_from([1, 2, 3, ENOUGH]))
    low, high = max(1, number - data.draw(st.integers(0, 2))), number + data.draw(st.integers(0, 2))
    line, stages = line_of(work_s, num_devices, room), range(1, len(work_s) + 1)
    assert fits(line, low, stages) or least_s(line, batch, low, high, stages) == inf
    truth = simulated_s(work_s, share, num_devices, batch, number, room)
    alone, together = least_s(line, batch, number, number, stages), least_s(line, batch, low, high, stages)
    assert together <= alone * (1 + 1e-9)
    assert alone <= truth * (1 + 1e-9)


def test_equal_stages_that_memory_forces_have_the_known_bubble() -> None:
    line = line_of([1.0] * 8, 64, room=8)  # one layer a stage: eight micro-batches in flight in the first of eight
    tight = Line(work_s=line.work_s, most_in_flight=np.diag([ENOUGH] * 8), speed=line.speed, fastest=line.fastest)
    assert least_s(tight, 160, 20, 20, range(1, 9)) == pytest.approx(160 * 8 / 64 * (20 + 7) / 20, rel=0.02)


def test_nothing_that_fits_is_told_from_a_line_that_is_too_long() -> None:
    assert least_s(line_of([1.0, 1.0], 4, room=0), 4, 2, 2, [1, 2]) == inf
    assert least_s(line_of([1.0] * 1500, 4), 4, 2, 2, range(1, 1501)) == 0.0
