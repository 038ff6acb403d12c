"""What no plan of the family ``model_replicas`` beats, in a closed form: for a ranking that never came to ask it.

Of M machines at most ``T = M - 1`` train, and at most ``M / 2`` pairs of a worker and a server exchange weights at the
same time. An epoch of S samples in batches of at most B hence takes no less than the sum of

* ``S / T`` times the computation of a sample on one worker with the best number of threads: the slowest of P segments
  has at least 1 / P of a phase, and a layer runs on ``P R N_mr <= T`` segments at a time;
* ``S / B`` times one write and one read of all weights over ``M / 2`` links, with the latency, the start-up and the
  optimiser's step of one exchange: there are S / B exchanges or more.

Messages between workers, input, memory, and that a layer cannot be cut into any number of stripes are left out.
"""

from collections import Counter
from dataclasses import replace

from planner.errors import SpecError
from planner.families.model_replicas.cost import exchange_parts_s, model_of, threads_of
from planner.families.model_replicas.settings import most_devices, most_machines
from planner.models.model_replicas import ReplicaModel
from planner.models.segment_work import SegmentWork
from planner.problem import Problem

__all__ = ["least_objective"]

_EXACT = 1 - 1e-9  # sums of seconds are rounded; a bound stays below them


def least_objective(problem: Problem, model: ReplicaModel | None = None) -> float:
    """Return an objective that no plan of the family beats, in the goal's unit; 0 where the family does not apply.

    ``model``: that of the question, where it has been made already.
    """
    try:
        model, machines, devices = model or model_of(problem), most_machines(problem), most_devices(problem)
        exchange_s = sum(exchange_parts_s(problem).values())
    except SpecError:
        return 0.0
    if machines < 2 or devices < 1:
        return 0.0
    threads = threads_of(problem)
    constants = model.constants
    busy = min(constants.interference(number) / number for number in threads)
    size_bytes = sum(stage.num_weights for stage in model.stages) * constants.number_bytes
    exchange_s += 2 * size_bytes / (constants.bandwidth_bytes_per_s * (machines // 2))
    samples, exchanges = _samples_and_exchanges(problem)
    return (samples * busy * _sample_s(problem, model) / devices + exchanges * exchange_s) * _EXACT


def _sample_s(problem: Problem, model: ReplicaModel) -> float:
    """Return the least seconds of computation of a sample on one thread, whatever the layers' partitions."""
    work, table = model.work, problem.calibration.multiply_add_s
    if table:  # smaller segments may be faster: as if all were as fast as the fastest
        least_s = min(seconds for _, seconds in table)
        work = SegmentWork(work.stages, replace(model.constants, multiply_add_s=lambda _size, _partitions: least_s))
    phases = (work.forward_s, work.backward_s, work.update_s)
    first: dict[int, int] = {}  # of every kind of layers
    number = Counter(first.setdefault(work.alike(index), index) for index in range(len(work.stages)))
    return sum(many * float(phase(index, 1)[0]) for index, many in number.items() for phase in phases)


def _samples_and_exchanges(problem: Problem) -> tuple[float, float]:
    """Return the fewest samples and exchanges of a replica that the goal counts."""
    training = problem.training
    if problem.goal.name == "iteration_time":
        return float(training.fixed_batch_size or 1), 1.0
    epochs = (training.epochs or 1.0) if problem.goal.name == "training_time" else 1.0
    samples = (training.dataset_samples or 0) * epochs
    most = training.fixed_batch_size or training.max_global_batch_size
    return samples, 0.0 if most is None else samples / most
