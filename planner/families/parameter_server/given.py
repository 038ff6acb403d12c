"""A configuration of parameter servers that a user gives, checked against the cluster."""

from collections.abc import Mapping
from math import ceil
from typing import Any

from planner.cluster import MachineGroup
from planner.errors import Fault, SpecError
from planner.families.compression import compression_of
from planner.families.faults import wrong
from planner.families.inner_links import check_inner_links
from planner.families.parameter_server.configuration import NAME, ParameterServerConfiguration
from planner.models.data_parallel import gradients_of
from planner.problem import Problem

__all__ = ["configuration_of", "default_placement", "may_work"]


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> ParameterServerConfiguration:
    """Return the configuration that a spec's block means.

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
    _known("servers", servers, groups)
    num_servers, co_located = given["num_parameter_servers"], given["co_located"]
    workers = given["workers"] or _other_machines(groups, servers, 0 if co_located else num_servers)
    for name in workers:
        _known("workers", name, groups)
    _check_machines(groups, workers, servers, num_servers, co_located=co_located)
    shares = _shares(problem, groups, workers, given)
    _check_synchronisation(given)
    return ParameterServerConfiguration(
        num_parameter_servers=num_servers,
        workers=workers,
        servers=servers,
        co_located=co_located,
        placement=_placement(
            problem, groups[next(iter(workers))], given["placement"] or default_placement(problem), num_servers
        ),
        batch_shares=shares,
        global_batch_size=given["global_batch_size"],
        compression=compression_of(given["compression"]),
        synchronisation=given["synchronisation"],
        staleness=given["max_staleness"] or max(0, (given["local_steps"] or 1) - 1),
    )


def default_placement(problem: Problem) -> str:
    """Return how a program places tensors where nobody says: whole ones in turn, or slices of all if it cuts them."""
    return "sliced" if problem.calibration.split_tensors else "round_robin"


def _check_synchronisation(given: Mapping[str, Any]) -> None:
    """Refuse bounds of another kind of synchronisation."""
    kind = given["synchronisation"]
    for key, owner in (("max_staleness", "ssp"), ("local_steps", "local_sgd")):
        if given[key] is not None and kind != owner:
            raise wrong(NAME, key, given[key], f"synchronisation is {kind}; {key} belongs to {owner}.")


def _other_machines(groups: Mapping[str, MachineGroup], servers: str, num_servers: int) -> dict[str, int]:
    """Return all machines that are not needed as servers; dedicated CPUs beside GPUs do not work."""
    counts = {name: group.count - (num_servers if name == servers else 0) for name, group in groups.items()}
    working = may_work(groups)
    return {name: count for name, count in counts.items() if count > 0 and name in working}


def may_work(groups: Mapping[str, MachineGroup], device: str | None = None) -> tuple[str, ...]:
    """Return the groups that may work: those with the pinned device, and no CPUs beside accelerators."""
    names = [name for name, group in groups.items() if device in (None, group.device.name)]
    has_accelerator = any(groups[name].device.kind != "cpu" for name in names)
    return tuple(name for name in names if not (has_accelerator and groups[name].device.kind == "cpu"))


def _check_machines(
    groups: Mapping[str, MachineGroup], workers: Mapping[str, int], servers: str, num_servers: int, *, co_located: bool
) -> None:
    """Refuse more machines than there are."""
    if not workers:
        raise wrong(NAME, "workers", "", f"no machine is left to work beside {num_servers} servers.")
    for name, group in groups.items():
        working, serving = workers.get(name, 0), num_servers if name == servers else 0
        used = max(working, serving) if co_located else working + serving
        if used > group.count:
            text = f"{working} workers and {serving} servers need {used} machines of {name!r}, which has {group.count}."
            raise wrong(NAME, "workers", working, text)


def _shares(
    problem: Problem, groups: Mapping[str, MachineGroup], workers: Mapping[str, int], given: Mapping[str, Any]
) -> dict[str, int]:
    """Return the samples of one device of each group: as given, or the batch in equal parts."""
    if given["batch_shares"] is not None:
        shares = dict(given["batch_shares"])
        if set(shares) != set(workers):
            raise wrong(
                NAME, "batch_shares", shares, f"shares are needed for {', '.join(workers)}, and for nothing else."
            )
        _check_shares(problem, groups, workers, shares, given["global_batch_size"])
        return shares
    training = problem.training
    if training.batch_per_device is not None and given["global_batch_size"] is None:
        return dict.fromkeys(workers, training.batch_per_device)
    batch = given["global_batch_size"] or training.global_batch_size or training.max_global_batch_size or 0
    devices = sum(count * groups[name].devices_per_machine for name, count in workers.items())
    if batch < devices:
        raise wrong(
            NAME, "batch_shares", batch, f"a batch of {batch} leaves some of {devices} devices without a sample."
        )
    is_fixed = (given["global_batch_size"] or training.global_batch_size) is not None
    return dict.fromkeys(workers, ceil(batch / devices) if is_fixed else batch // devices)


def _check_shares(
    problem: Problem,
    groups: Mapping[str, MachineGroup],
    workers: Mapping[str, int],
    shares: Mapping[str, int],
    batch: int | None,
) -> None:
    """Refuse shares that do not make the batch, also where some devices have one sample less than the others."""
    devices = {name: count * groups[name].devices_per_machine for name, count in workers.items()}
    total = sum(devices[name] * shares[name] for name in workers)
    least = sum(devices[name] * max(1, shares[name] - 1) for name in workers)
    training = problem.training
    wanted, most = training.global_batch_size or batch, training.max_global_batch_size
    if batch is not None and batch > (training.global_batch_size or most or batch):
        raise wrong(NAME, "global_batch_size", batch, f"dnn asks for {training.global_batch_size or most}.")
    if (wanted is not None and not least <= wanted <= total) or (wanted is None and most is not None and total > most):
        raise wrong(NAME, "batch_shares", total, f"the shares make a batch of {total}; dnn asks for {wanted or most}.")


def _placement(
    problem: Problem, group: MachineGroup, given: str | Mapping[str, int], num_servers: int
) -> str | Mapping[str, int]:
    """Return a placement, checked: every gradient on one of the servers."""
    if isinstance(given, str):
        return given
    names = gradients_of(
        problem.dnn, problem.profiles[group.device.name], gradient_bytes=1, unit=problem.calibration.fusion_unit
    ).names
    if missing := [name for name in names if name not in given]:
        raise wrong(NAME, "placement", missing[0], f"{missing[0]!r} is on no server.")
    if unknown := [name for name in given if name not in names]:
        raise wrong(NAME, "placement", unknown[0], f"{unknown[0]!r} is no gradient of this network.")
    if beyond := {name: index for name, index in given.items() if not 0 <= index < num_servers}:
        name, index = next(iter(beyond.items()))
        raise wrong(NAME, "placement", index, f"{name!r} is on server {index}; there are {num_servers}, from 0 on.")
    return dict(given)


def _known(key: str, name: str, groups: Mapping[str, MachineGroup]) -> None:
    """Refuse the name of machines that there are not."""
    if name not in groups:
        raise wrong(NAME, key, name, f"there are no machines {name!r}; there are {', '.join(groups)}.")
