"""The decisions of the family ``parameter_server``: what they are, how a block says them, which machines work."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from planner.cluster import MachineGroup
from planner.cost import Floats
from planner.errors import Fault, SpecError
from planner.families.parsing import check_inner_links, compression_of, wrong
from planner.frozen import frozen
from planner.models.compression import Compression
from planner.models.data_parallel import gradients_of
from planner.models.exchange import Overlap
from planner.models.input import Strategy
from planner.models.memory import Precision
from planner.problem import Problem
from planner.shown import document_of
from planner.units import Dimension, format_exact
from planner.used_machines import UsedMachines
from planner.words import many, size_words

NAME = "parameter_server"
_MOST_PIECES = 10_000  # that tensors are cut into


@frozen
class ParameterServerConfiguration:
    """All decisions of the family."""

    num_parameter_servers: int
    workers: Mapping[str, int]  # machines of each group that work, by the group's name
    servers: str  # the group whose machines serve
    co_located: bool  # whether servers stand on the first machines of their group that work, instead of on others
    placement: str | Mapping[str, int]  # a rule, or the server of every tensor
    # samples of one device, by the group's name: the largest share. Where they make more than the batch, some devices
    # have one sample less
    batch_shares: Mapping[str, int]
    # samples of one iteration; left out, what the question fixes, or all shares together
    global_batch_size: int | None = None
    # share of every gradient that is not pushed, and the seconds that leaving nothing out would take. Pulls are whole
    compression: Compression | None = None
    # synchronisation, staleness: ``bsp``; ``ssp``, and by how many iterations the fastest worker may lead; ``asp``;
    # ``local_sgd``, and how many iterations in a row exchange nothing (its local steps less one)
    synchronisation: str = "bsp"
    staleness: int = 0
    # overlap, has_barrier: what goes over links beside computing, and whether all gradients arrive before any sum is
    # sent back; None: as ``calibration.strategy`` says, and behind ``none`` and ``push``
    overlap: str | None = None
    has_barrier: bool | None = None
    # the largest piece of a tensor that goes on its own; None where tensors go whole
    partition_bytes: float | None = None
    # whether of what waits for a connection the layer that runs forward sooner goes first; None: as it gets ready
    has_priority: bool | None = None

    @property
    def headline(self) -> str:
        """How many workers and servers, and how they keep in step if not by a barrier."""
        workers, number = sum(self.workers.values()), self.num_parameter_servers
        working = " + ".join(f"{many(count, 'machine')} of {name}" for name, count in self.workers.items())
        working += f" as worker{'s' * (workers > 1)}"
        serving = f"{many(number, 'machine')} of {self.servers} as server{'s' * (number > 1)}"
        if self.co_located:
            serving = f"{many(number, 'server')} on the same machine{'s' * (workers > 1)}"
        steps = {
            "ssp": f", SSP({self.staleness})",
            "asp": ", ASP",
            "local_sgd": f", local SGD({self.staleness + 1})",
        }.get(self.synchronisation, "")
        return f"{working}, {serving}{steps}{self.beside}"

    @property
    def sends_alone(self) -> bool:
        """Whether every sum is sent on its own, without a barrier: see :func:`is_sent_alone`."""
        return self.synchronisation == "bsp" and is_sent_alone(self.overlap, self.has_barrier)

    @property
    def beside(self) -> str:
        """What was decided of the exchange, for the headline."""
        words = f", overlap {self.overlap}" * (self.overlap is not None)
        if self.has_barrier is not None:
            words += ", barrier" if self.has_barrier else ", no barrier"
        if self.partition_bytes is not None:
            words += f", pieces of {size_words(self.partition_bytes)}"
        if self.has_priority:
            words += ", by priority"
        return words

    def to_document(self) -> dict[str, object]:
        """Return the block that ``predict`` reads back."""
        names = ("num_parameter_servers", "workers", "servers", "co_located", "placement", "batch_shares")
        block = document_of(self, *names)
        if self.global_batch_size is not None:
            block["global_batch_size"] = self.global_batch_size
        if (compression := self.compression) is not None:
            time = format_exact(compression.scale_s, Dimension.TIME)
            block["compression"] = {"removed": float(compression.removed), "time": time}
        if self.synchronisation != "bsp":
            block["synchronisation"] = self.synchronisation
        if self.overlap is not None:
            block["overlap"] = self.overlap
        if self.has_barrier is not None:
            block["barrier"] = self.has_barrier
        if self.partition_bytes is not None:
            block["partition_bytes"] = format_exact(self.partition_bytes, Dimension.DATA)
        if self.has_priority is not None:
            block["priority"] = self.has_priority
        if self.synchronisation == "ssp":
            block["max_staleness"] = self.staleness
        if self.synchronisation == "local_sgd":
            block["local_steps"] = self.staleness + 1
        return block


class Way(NamedTuple):
    """How sums travel: what goes beside computing, and whether behind a barrier; None: as in a block that is silent."""

    overlap: str | None
    has_barrier: bool | None

    @property
    def is_keyed(self) -> bool:
        """Whether every sum is sent on its own: see :func:`is_sent_alone`."""
        return is_sent_alone(self.overlap, self.has_barrier)

    def words(self, problem: Problem) -> str:
        """Return what goes beside computing, and that there is a barrier."""
        return f"{overlap_of(problem, self.overlap)}{' behind a barrier' * (not self.is_keyed)}"

    @property
    def pulls_early(self) -> bool:
        """Whether sums are sent without being asked for."""
        return self.overlap is not None and Overlap(self.overlap).pulls_early

    @property
    def is_forward(self) -> bool:
        """Whether the next forward pass waits layer by layer."""
        return self.overlap == Overlap.PUSH_PULL_FORWARD


def overlap_of(problem: Problem, overlap: str | None) -> Overlap:
    """Return what goes over links beside computing: as decided, or as the question's strategy has it."""
    if overlap is not None:
        return Overlap(overlap)
    return Overlap.PUSH if Strategy(problem.calibration.strategy).overlaps_gradients else Overlap.NONE


def ways_of(problem: Problem) -> list[Way]:
    """Return the ways of sums that a question leaves open, those that ask least of a program first.

    Beside its own strategy behind a barrier, they are those that send sums early as far as
    ``calibration.max_overlap`` says. What is pinned is the only one.
    """
    fixed, most = problem.fixed, problem.calibration.max_overlap
    ways = [Way(fixed.get("overlap"), fixed.get("barrier"))]
    if most is not None and ways[0].overlap is None and not ways[0].has_barrier:
        early = [one.value for one in Overlap if one.pulls_early]
        ways += [Way(one, fixed.get("barrier")) for one in early[: early.index(most) + 1]]
    goes_alone = "partition_bytes" in fixed or fixed.get("priority", False)
    return [way for way in ways if way.is_keyed or not goes_alone]


def is_sent_alone(overlap: str | None, has_barrier: bool | None) -> bool:
    """Return whether every sum is sent when it is complete, and not behind a barrier; None: as left out.

    A barrier stands where none is named, but for overlaps that send sums early.
    """
    if has_barrier is not None:
        return not has_barrier
    return overlap is not None and Overlap(overlap).pulls_early


def machines(problem: Problem, configuration: ParameterServerConfiguration) -> Iterator[UsedMachines]:
    """Yield workers by group, all devices of a machine; then the servers."""
    groups = {group.name: group for group in problem.cluster.machine_groups}
    for name, number in configuration.workers.items():
        yield UsedMachines.training(groups[name], number, groups[name].devices_per_machine)
    servers, number = groups[configuration.servers], configuration.num_parameter_servers
    yield UsedMachines.serving(servers, number, is_shared=configuration.co_located)


def may_work(groups: Mapping[str, MachineGroup], device: str | None = None) -> tuple[str, ...]:
    """Return the groups that may work: those with the pinned device, and no CPUs beside accelerators."""
    names = [name for name, group in groups.items() if device in (None, group.device.name)]
    has_accelerator = any(groups[name].device.kind != "cpu" for name in names)
    return tuple(name for name in names if not (has_accelerator and groups[name].device.kind == "cpu"))


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ParameterServerConfiguration:
    """Return the configuration that a spec's block means.

    What a block leaves out: the last group serves; all other machines work, but for dedicated CPUs beside GPUs; the
    batch is shared evenly; tensors are placed as programs do, see :func:`_placement`.

    Raises
    ------
    SpecError
        Where it names machines that there are not, more of them than there are, or no batch that can be shared.
    """
    check_inner_links(problem, NAME)
    if problem.variant != "corrected":
        text = "the printed forms of the parameter-server papers are asked in their cases."
        raise SpecError.of([Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")])
    groups = {group.name: group for group in problem.cluster.machine_groups}
    servers = given["servers"] or list(groups)[-1]
    num_servers, co_located = given["num_parameter_servers"], given["co_located"]
    workers = dict(given["workers"] or {})
    for key, name in [("servers", servers), *(("workers", name) for name in workers)]:
        if name not in groups:
            raise wrong(NAME, key, name, f"there are no machines {name!r}; there are {', '.join(groups)}.")
    dedicated = {name: num_servers if name == servers and not co_located else 0 for name in groups}
    if not workers:
        free = {name: groups[name].count - dedicated[name] for name in may_work(groups)}
        workers = {name: count for name, count in free.items() if count > 0}
        if not workers:
            raise wrong(NAME, "workers", "", f"no machine is left to work beside {num_servers} servers.")
    for name, group in groups.items():
        working, serving = workers.get(name, 0), num_servers if name == servers else 0
        used = max(working, serving) if co_located else working + serving
        if used > group.count:
            text = f"{working} workers and {serving} servers need {used} machines of {name!r}, which has {group.count}."
            raise wrong(NAME, "workers", working, text)
    devices = {name: count * groups[name].devices_per_machine for name, count in workers.items()}
    shares = _batch_shares(problem, devices, given["batch_shares"], given["global_batch_size"])
    synchronisation = given["synchronisation"]
    for key, owner in (("max_staleness", "ssp"), ("local_steps", "local_sgd")):
        if given[key] is not None and synchronisation != owner:
            raise wrong(NAME, key, given[key], f"synchronisation is {synchronisation}; {key} belongs to {owner}.")
    _check_exchange(problem, groups[next(iter(workers))], given)
    return ParameterServerConfiguration(
        num_parameter_servers=num_servers,
        workers=workers,
        servers=servers,
        co_located=co_located,
        placement=_placement(problem, groups[next(iter(workers))], given["placement"], num_servers),
        batch_shares=shares,
        global_batch_size=given["global_batch_size"],
        compression=compression_of(given["compression"]),
        synchronisation=synchronisation,
        staleness=given["max_staleness"] or max(0, (given["local_steps"] or 1) - 1),
        overlap=given["overlap"],
        has_barrier=given["barrier"],
        partition_bytes=given["partition_bytes"],
        has_priority=given["priority"],
    )


def _check_exchange(problem: Problem, group: MachineGroup, given: Mapping[str, Any]) -> None:
    """Refuse a network without weights, and what does not go together of how sums are exchanged."""
    gradient_bytes = Precision.of(problem.training.dtype, problem.training.optimizer).gradient_bytes
    sizes = gradients_of(
        problem.dnn,
        problem.profiles[group.device.name],
        gradient_bytes=gradient_bytes,
        unit=problem.calibration.fusion_unit,
    ).size_bytes
    if not len(sizes):
        text = "the network has no weights, so that there is nothing for a server to hold."
        raise wrong(NAME, "num_parameter_servers", given["num_parameter_servers"], text, "Take another family.")
    synchronisation, overlap = given["synchronisation"], given["overlap"]
    for key in ("overlap", "barrier", "partition_bytes", "priority"):
        if given[key] is not None and synchronisation != "bsp":
            text = f"synchronisation is {synchronisation}, which has an exchange of its own; {key} belongs to bsp."
            raise wrong(NAME, key, given[key], text)
    if given["barrier"] and is_sent_alone(overlap, None):
        text = (
            f"behind a barrier no sum is sent early, and overlap is {overlap}. Have overlap none or push, or drop it."
        )
        raise wrong(NAME, "barrier", True, text)
    piece_bytes = given["partition_bytes"]
    if not is_sent_alone(overlap, given["barrier"]):
        for key in ("partition_bytes", "priority"):
            if given[key]:
                text = "behind a barrier all gradients arrive before any sum leaves, in pieces and in any order alike."
                raise wrong(NAME, key, given[key], text, "Set barrier: false, or leave it out.")
    if piece_bytes is not None and (fault := piece_fault(sizes, piece_bytes)):
        raise wrong(NAME, "partition_bytes", size_words(piece_bytes), *fault)


def piece_fault(size_bytes: Floats, piece_bytes: float) -> tuple[str, str] | None:
    """Return why tensors cannot be cut into pieces of so many bytes, and what would mend it; None where they can."""
    if piece_bytes < 1:
        return "a piece has a byte or more.", "Give its size."
    if piece_bytes > (largest := float(size_bytes.max(initial=0.0))):
        return f"the largest tensor has {size_words(largest)}: none would be cut.", "Give less, or leave it out."
    if (number := float(np.ceil(size_bytes / piece_bytes).sum())) > _MOST_PIECES:
        least = size_words(1.01 * float(size_bytes.sum()) / max(_MOST_PIECES - len(size_bytes), 1))
        return f"{number:,.0f} pieces are more than can be followed one by one.", f"Give {least} or more."
    return None


def _batch_shares(
    problem: Problem, devices: Mapping[str, int], shares: Mapping[str, int] | None, batch: int | None
) -> dict[str, int]:
    """Return the samples of one device of each working group: as given, or the batch in equal parts.

    Shares have to make the batch, also where some devices have one sample less than the others.
    """
    training = problem.training
    fixed, most = training.global_batch_size, training.max_global_batch_size
    if shares is None:
        if training.batch_per_device is not None and batch is None:
            return dict.fromkeys(devices, training.batch_per_device)
        number, shared = sum(devices.values()), batch or fixed or most or 0
        if shared < number:
            text = f"a batch of {shared} leaves some of {number} devices without a sample."
            raise wrong(NAME, "batch_shares", shared, text)
        is_fixed = (batch or fixed) is not None
        return dict.fromkeys(devices, ceil(shared / number) if is_fixed else shared // number)
    if set(shares) != set(devices):
        text = f"shares are needed for {', '.join(devices)}, and for nothing else."
        raise wrong(NAME, "batch_shares", dict(shares), text)
    total = sum(number * shares[name] for name, number in devices.items())
    least = sum(number * max(1, shares[name] - 1) for name, number in devices.items())
    if batch is not None and batch > (fixed or most or batch):
        raise wrong(NAME, "global_batch_size", batch, f"dnn asks for {fixed or most}.")
    wanted = fixed or batch
    if (wanted is not None and not least <= wanted <= total) or (wanted is None and most is not None and total > most):
        raise wrong(NAME, "batch_shares", total, f"the shares make a batch of {total}; dnn asks for {wanted or most}.")
    return dict(shares)


def _placement(
    problem: Problem, group: MachineGroup, given: str | Mapping[str, int] | None, num_servers: int
) -> str | Mapping[str, int]:
    """Return a placement, checked: every gradient on one of the servers.

    Left out, as programs place tensors: whole ones in turn, or slices of all where the library cuts them.
    """
    if not given:
        return "sliced" if problem.calibration.split_tensors else "round_robin"
    if isinstance(given, str):
        return given
    names = gradients_of(
        problem.dnn, problem.profiles[group.device.name], gradient_bytes=1, unit=problem.calibration.fusion_unit
    ).names
    if missing := [name for name in names if name not in given]:
        raise wrong(NAME, "placement", missing[0], f"{missing[0]!r} is on no server.")
    if unknown := [name for name in given if name not in names]:
        raise wrong(NAME, "placement", unknown[0], f"{unknown[0]!r} is no gradient of this network.")
    if beyond := [(name, server) for name, server in given.items() if not 0 <= server < num_servers]:
        name, server = beyond[0]
        raise wrong(NAME, "placement", server, f"{name!r} is on server {server}; there are {num_servers}, from 0 on.")
    return dict(given)


def left_out(
    problem: Problem, given: Mapping[str, object], configuration: ParameterServerConfiguration
) -> tuple[str, ...]:
    """Return how tensors are placed on several servers."""
    if given["placement"] is not None or configuration.num_parameter_servers == 1:
        return ()
    return (f"placement: {configuration.placement}, as the program has it; plan looks for the best one",)
