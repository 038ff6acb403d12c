"""A training step of a transformer, task by task: the referee of the closed forms of schedules.

Nothing is taken from the closed forms, nor from the longest paths of the schedules: those have nodes with two
predecessors in an order that is found once, here tasks may wait for any others.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from planner.models.layouts import Schedule
from planner.models.orders import order_of
from planner.models.transformer_schedule import order_name

__all__ = ["Events", "StageTimes", "simulate_step"]

_KINDS = ("forward", "backward", "weights")


@dataclass(slots=True)
class Events:
    """Tasks in the making: add them line by line in the order in which each line does them, then run.

    >>> events = Events()
    >>> events.add("a", 2.0, ["device"])
    >>> events.add("b", 3.0, ["device"], after=["c"])
    >>> events.add("c", 4.0, ["link"], after=["a"])
    >>> events.run()["b"]
    9.0
    """

    seconds: dict[Hashable, float] = field(default_factory=dict)
    lines: dict[Hashable, list[Hashable]] = field(default_factory=dict)
    after: dict[Hashable, list[Hashable]] = field(default_factory=dict)

    def add(self, task: Hashable, seconds: float, lines: Sequence[Hashable], after: Sequence[Hashable] = ()) -> None:
        self.seconds[task] = seconds
        self.after[task] = list(after)
        for line in lines:
            self.lines.setdefault(line, []).append(task)

    def run(self) -> dict[Hashable, float]:
        """Return the end of every task, in seconds from 0; none may wait for another that waits for it."""
        before = {task: list(others) for task, others in self.after.items()}
        for order in self.lines.values():
            for one, other in pairwise(order):
                before[other].append(one)
        behind: dict[Hashable, list[Hashable]] = {task: [] for task in self.seconds}
        missing = {task: len(others) for task, others in before.items()}
        for task, others in before.items():
            for other in others:
                behind[other].append(task)
        ready = [task for task, number in missing.items() if not number]
        ends: dict[Hashable, float] = {}
        while ready:
            task = ready.pop()
            ends[task] = max((ends[other] for other in before[task]), default=0.0) + self.seconds[task]
            for other in behind[task]:
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        assert len(ends) == len(self.seconds), "tasks wait for one another"
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds of one stage (a chunk of a device): of one micro-batch, and once a step."""

    # forward_s, backward_s: the backward without the gradient of the weights where that is given apart
    forward_s: float
    backward_s: float
    weight_gradient_s: float = 0.0  # of the weights, apart; 0 where it is part of ``backward_s``
    # of the weights for one forward, and again for one backward (ZeRO-3); runs on the device's network beside
    # computing, one ahead
    gather_s: float = 0.0
    # exchanges of the gradients of equal parts of the stage, the last part first, each as soon as the last micro-
    # batch's backward of that part is done
    buckets_s: tuple[float, ...] = ()
    update_s: float = 0.0  # behind all of them


def simulate_step(
    stages: Sequence[StageTimes],
    transfer_s: float,
    *,
    num_microbatches: int,
    schedule: Schedule,
    interleave: int = 1,
    is_blocking: bool = False,
) -> float:
    """Return the seconds of one step.

    Parameters
    ----------
    stages
        In the order of the layers; stage k lies on device ``k mod p`` with ``p = len(stages) / interleave``.
    transfer_s
        From a stage to the next, and back.
    is_blocking
        Whether a device that sends does nothing else; else one channel each way between neighbours sends, in the order
        in which outputs come.
    """
    num_stages, p = len(stages), len(stages) // interleave
    events = Events()
    for device, order in enumerate(order_of(order_name(schedule, interleave), p, num_microbatches, interleave)):
        last_of: dict[int, int] = {}
        for index, stage, j in order:
            kind = _KINDS[index]
            last_of[stage] = last_of.get(stage, 0) + (kind != "forward")
            is_last = last_of[stage] == num_microbatches * (2 if stages[stage].weight_gradient_s else 1)
            _add(events, stages[stage], (kind, stage, j), num_stages, device, is_last=is_last)
            target = stage + {"forward": 1, "backward": -1}.get(kind, num_stages)
            if 0 <= target < num_stages:
                line = ("computing", device) if is_blocking else ("channel", device, kind)
                events.add(("sent", kind, stage, j), transfer_s, [line], [(kind, stage, j)])
    for stage, times in enumerate(stages):
        events.add(("update", stage), times.update_s, [("computing", stage % p)], _last(events, stage))
    return max(events.run().values())


def _last(events: Events, stage: int) -> list[Hashable]:
    """Return the exchanges that a stage's update waits for."""
    return [task for task in events.seconds if isinstance(task, tuple) and task[:2] == ("bucket", stage)]


def _add(
    events: Events,
    times: StageTimes,
    task: tuple[str, int, int],
    num_stages: int,
    device: int,
    *,
    is_last: bool,
) -> None:
    """Add a forward, a backward or a gradient of weights, with the gather before it and the exchanges behind it."""
    kind, stage, j = task
    seconds = {"forward": times.forward_s, "backward": times.backward_s, "weights": times.weight_gradient_s}[kind]
    source = _input(kind, stage, j, num_stages)
    after = [source] if source else []
    if times.gather_s and kind != "weights":
        events.add(("gather", *task), times.gather_s, [("network", device)])
        after.append(("gather", *task))
    pieces = max(1, len(times.buckets_s)) if is_last else 1
    for piece in range(pieces):
        name = task if piece == pieces - 1 else ("piece", *task, piece)
        events.add(name, seconds / pieces, [("computing", device)], after)
        if is_last and times.buckets_s:
            events.add(("bucket", stage, piece), times.buckets_s[piece], [("network", device)], [name])


def _input(kind: str, stage: int, j: int, num_stages: int) -> Hashable:
    """Return what a task reads: the transfer to it, or on the last stage the forward before it."""
    if kind == "weights" or (kind == "forward" and stage == 0):
        return None
    if kind == "backward" and stage == num_stages - 1:
        return ("forward", stage, j)
    return ("sent", kind, stage - 1 if kind == "forward" else stage + 1, j)
