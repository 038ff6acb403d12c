"""The numbers of servers, replicas and workers that a question allows, their objectives, and why there may be none.

What no plan of the family beats, in a closed form, for a ranking that never came to ask it: of M machines at most
``T = M - 1`` train, and at most ``M / 2`` pairs of a worker and a server exchange weights at the same time. An epoch of
S samples in batches of at most B hence takes no less than the sum of

* ``S / T`` times the computation of a sample on one worker with the best number of threads: the slowest of P segments
  has at least 1 / P of a phase, and a layer runs on ``P R N_mr <= T`` segments at a time;
* ``S / B`` times one write and one read of all weights over ``M / 2`` links, with the latency, the start-up and the
  optimiser's step of one exchange: there are S / B exchanges or more.

Messages between workers, input, memory, and that a layer cannot be cut into any number of stripes are left out.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Self

from planner.constraints import allowed_staleness
from planner.errors import SpecError
from planner.families.model_replicas.configuration import batch_of, group_of, share_of, threads_of
from planner.families.model_replicas.cost import exchange_parts_s, input_of, model_of
from planner.frozen import frozen
from planner.models.input import Strategy, stall_s
from planner.models.replica_segments import LayerChoice, ReplicaConfiguration, SegmentWork
from planner.models.replicas import ReplicaModel
from planner.problem import Problem, Range
from planner.solution import BELOW

_SHAPE = ("num_parameter_servers", "num_replicas", "num_workers_per_replica")  # pins of a setting's own numbers,
_COUNTS = ("num_machines", "num_devices")  # and those of what they come to, which other families know as well
_MOST_SETTINGS = 100_000  # that are all asked for


@frozen
class Setting:
    """``N_ps`` servers, ``N_mr`` replicas of ``N_wr`` workers each, and how often a replica reads."""

    num_servers: int
    num_replicas: int
    num_workers: int
    samples_per_read: int

    @property
    def all_workers(self) -> int:
        """Machines that train."""
        return self.num_replicas * self.num_workers

    @property
    def num_machines(self) -> int:
        """Machines that train or serve."""
        return self.num_servers + self.all_workers

    def configuration(self, layers: tuple[LayerChoice, ...]) -> ReplicaConfiguration:
        """Return the configuration of these numbers with some layers."""
        return ReplicaConfiguration(
            num_servers=self.num_servers, num_replicas=self.num_replicas, num_workers=self.num_workers, layers=layers
        )

    def price_s_per_byte(self, bandwidth_bytes_per_s: float) -> float:
        """Return the seconds a sample, times N_mr, of a byte that every replica reads and writes at each exchange.

        Reading, ``serialised``, takes ``max(1 / (N_mr min(N_ps, N_wr)), 1 / N_ps)`` of a link, which is
        ``1 / min(N_mr N_wr, N_ps)`` since ``N_mr N_ps >= N_ps``. Writing as many bytes of gradients takes as long
        again: hence the 2.
        """
        links = min(self.all_workers, self.num_servers)
        return 2 * self.num_replicas / (self.samples_per_read * bandwidth_bytes_per_s * links)


def is_asynchronous_allowed(problem: Problem) -> bool:
    """Whether replicas may run beside one another: their staleness has no bound."""
    return allowed_staleness(problem) == float("inf")


def settings_of(problem: Problem) -> Iterator[Setting]:
    """Yield the settings within the limits and pins, with the number of servers that is best for each.

    Reading and writing take ``1 / min(N_mr N_wr, N_ps)`` of a link's time each, and nothing else depends on the
    servers: as many as there are workers are enough, and until then every machine left does best as a server. One more
    than that would change nothing, and stays idle unless the question asks for it.
    """
    machines = _Machines.of(problem)
    for replicas in _numbers(problem, "num_replicas", machines.most):
        if (share := _share(problem, replicas)) is None:
            continue
        for workers in _numbers(problem, "num_workers_per_replica", (machines.most - 1) // replicas):
            if (setting := machines.setting(replicas, workers, share)) is not None:
                yield setting


def some_settings_of(problem: Problem) -> Iterator[Setting]:
    """Yield some settings of very many: replicas and workers by halves, powers of two, and where limits begin and end.

    >>> import planner
    >>> machines = {"count": 1_000_000, "device": "v100-sxm2-16g", "network": "10 Gbit/s"}
    >>> dnn = {"zoo": "adam-mnist", "global_batch": 10**12}
    >>> asked = {"dnn": dnn, "cluster": {"machines": [machines]}, "families": ["model_replicas"]}
    >>> len(list(some_settings_of(planner.load(asked)))) < 2_000
    True
    """
    machines = _Machines.of(problem)
    most, least, devices, servers = machines.most, machines.least, machines.devices, machines.pinned_servers or 1
    for replicas in _round(_numbers(problem, "num_replicas", most)):
        if (share := _share(problem, replicas)) is None:
            continue
        ends = (devices.least, devices.most, most - servers, least - servers, most // 2)
        within = [number // replicas + more for number in ends if number is not None for more in (0, 1)]
        every = _numbers(problem, "num_workers_per_replica", (most - 1) // replicas)
        for workers in sorted({*_round(every), *(number for number in within if number in every)}):
            if (setting := machines.setting(replicas, workers, share)) is not None:
                yield setting


def _round(numbers: range) -> list[int]:
    """Return the powers of two and the halves of the last one of some numbers; all where there are few."""
    if len(numbers) <= 8:
        return list(numbers)
    powers = [1 << bit for bit in range(numbers[-1].bit_length())]
    halves = [numbers[-1] >> bit for bit in range(numbers[-1].bit_length())]
    return sorted({number for number in (*powers, *halves) if number in numbers})


def are_few(problem: Problem) -> bool:
    """Whether the settings are so few that each can be asked for: known before any is made."""
    most = most_machines(problem)
    replicas = _numbers(problem, "num_replicas", most) if is_asynchronous_allowed(problem) else range(1, 2)
    if len(replicas) > _MOST_SETTINGS:
        return False
    workers = problem.fixed.get("num_workers_per_replica")
    number = sum(1 if workers else (most - 1) // one for one in replicas)
    return number <= _MOST_SETTINGS


def _share(problem: Problem, num_replicas: int) -> int | None:
    """Return the samples between two reads; None if so many replicas are not allowed, or too many for the batch."""
    if num_replicas > 1 and not is_asynchronous_allowed(problem):
        return None
    try:
        return share_of(problem, num_replicas)
    except SpecError:
        return None


@frozen(kw_only=False)
class _Machines:
    """How many machines there may be and must be, how many devices may train, and the pinned number of servers."""

    most: int
    least: int
    devices: Range
    pinned_servers: int | None

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return those of a question."""
        pinned = problem.fixed.get("num_parameter_servers")
        least = max(problem.allowed_machines.least, problem.busy_machines)
        return cls(most_machines(problem), least, problem.allowed_devices, pinned)

    def setting(self, replicas: int, workers: int, share: int) -> Setting | None:
        """Return the setting of so many replicas and workers with its best number of servers; None if not allowed."""
        trained = replicas * workers
        left, servers = self.most - trained, self.pinned_servers
        if servers is None:
            servers = max(min(trained, left), self.least - trained)
        is_within = 1 <= servers <= left and trained + servers >= self.least
        if not is_within or trained not in self.devices:
            return None
        return Setting(num_servers=servers, num_replicas=replicas, num_workers=workers, samples_per_read=share)


def most_machines(problem: Problem) -> int:
    """Return how many machines may be used."""
    count, most = group_of(problem).count, problem.allowed_machines.most
    return count if most is None else min(count, most)


def most_devices(problem: Problem) -> int:
    """Return how many devices may train: one machine at least serves."""
    left, most = most_machines(problem) - 1, problem.allowed_devices.most
    return left if most is None else min(left, most)


def _numbers(problem: Problem, pin: str, most: int) -> range:
    """Return 1 to ``most``, or the pinned number if it is one of them."""
    pinned = problem.fixed.get(pin)
    if pinned is None:
        return range(1, most + 1)
    return range(pinned, pinned + (1 <= pinned <= most))


def samples_of_goal(problem: Problem, setting: Setting) -> float:
    """Return the samples that the goal counts: those of an iteration, of an epoch, or of the whole training."""
    if problem.goal.name == "iteration_time":
        return batch_of(problem, setting.num_replicas, setting.samples_per_read)
    return _epochs(problem) * (problem.training.dataset_samples or 0)


def _epochs(problem: Problem) -> float:
    """Return the epochs that the goal counts."""
    return (problem.training.epochs or 1.0) if problem.goal.name == "training_time" else 1.0


def objective_of(problem: Problem, setting: Setting, layers_s: float) -> float:
    """Return the goal of a setting whose layers, with the exchange of their weights, take so many seconds a sample.

    The one way from layers to an objective: for what is chosen, for what lost, and, as it rises with ``layers_s``
    whatever the devices wait for, for bounds. Beside the layers an exchange has its latency, start-up and optimiser,
    and devices may wait for input.
    """
    batch = batch_of(problem, setting.num_replicas, setting.samples_per_read)
    busy_s = layers_s / setting.num_replicas * batch + sum(exchange_parts_s(problem).values())
    read = input_of(problem, setting.all_workers, batch)
    iteration_s = busy_s + stall_s(read, busy_s, Strategy(problem.calibration.strategy))
    return iteration_s * samples_of_goal(problem, setting) / batch


def fixed_of_goal(problem: Problem, setting: Setting) -> float:
    """Return the seconds of the goal that depend on no layer: latency, start-up and optimiser of every exchange."""
    batch = batch_of(problem, setting.num_replicas, setting.samples_per_read)
    return sum(exchange_parts_s(problem).values()) * samples_of_goal(problem, setting) / batch


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
    training = problem.training
    samples, exchanges = float(training.fixed_batch_size or 1), 1.0
    if problem.goal.name != "iteration_time":
        samples = _epochs(problem) * (training.dataset_samples or 0)
        most = training.fixed_batch_size or training.max_global_batch_size
        exchanges = 0.0 if most is None else samples / most
    return (samples * busy * _sample_s(problem, model) / devices + exchanges * exchange_s) * BELOW


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


def why_nothing_fits(problem: Problem) -> str:
    """Return which limits and pins leave no setting, and what would have to give."""
    fixed, limits = problem.fixed, problem.limits
    servers, replicas, workers = (fixed.get(name, 1) for name in _SHAPE)
    if replicas > 1 and not is_asynchronous_allowed(problem):
        return (
            f"No plan fits: fix.num_replicas is {replicas}; replicas train asynchronously, and "
            f"constraints.max_staleness is {limits.max_staleness or 0:g}. Set it to unbounded, or pin 1."
        )
    if (needed := servers + replicas * workers) > most_machines(problem):
        most = most_machines(problem)
        pins = " and ".join(f"fix.{name} {fixed[name]}" for name in _SHAPE if name in fixed)
        limit = f"there are {most}"
        if most < group_of(problem).count:
            key = "fix.num_machines" if fixed.get("num_machines") == most else "constraints.machines"
            limit = f"{key} allows {most}"
        what = f"{servers} servers + {replicas} replicas x {workers} workers need at least {needed} machines"
        return (
            f"No plan fits: {what}{f' with {pins}' if pins else ''}; {limit}. Raise the number of machines to {needed}"
            f"{', or pin less' if pins else ''}."
        )
    if _share(problem, replicas) is None:
        training = problem.training
        batch = training.fixed_batch_size or training.max_global_batch_size
        return f"No plan fits: a batch of {batch} leaves some of {replicas} replicas without a sample. Raise it."
    asked = [
        f"constraints.{name} {allowed.words}"
        for name, allowed in (("machines", limits.machines), ("devices", limits.devices))
        if allowed != Range()
    ]
    asked += [f"fix.{name} {fixed[name]}" for name in (*_COUNTS, *_SHAPE) if name in fixed]
    asked += filter(None, [problem.devices_words])
    return (
        f"No plan fits: no numbers of servers, replicas and workers on up to {most_machines(problem)} machines meet "
        f"{' and '.join(asked)} together (every worker is a device that trains, every server a machine "
        f"more). Drop or change one of them."
    )
