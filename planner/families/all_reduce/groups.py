"""Which machines a data-parallel plan may use: all, of one type of device, or of several."""

from collections.abc import Collection

from planner.cluster import Cluster
from planner.errors import Fault, SpecError
from planner.problem import Problem

__all__ = ["is_mixed", "one_type", "taking_part"]


def taking_part(problem: Problem) -> Cluster:
    """Return the machines that may train: of the pinned type of device, and no CPUs beside accelerators.

    Raises
    ------
    SpecError
        If the pinned device is not there, or the machines left cannot reach each other.
    """
    cluster, pinned = problem.cluster, problem.fixed.get("device")
    groups = cluster.machine_groups
    types = list(dict.fromkeys(group.device.name for group in groups))
    if pinned is not None:
        if pinned not in types:
            mend = f"Write one of {', '.join(types)}."
            raise SpecError.of(
                [Fault(field="fix.device", value=pinned, problem=f"{pinned!r} is not in the cluster.", mend=mend)]
            )
        names = [group.name for group in groups if group.device.name == pinned]
    else:
        accelerators = [group.name for group in groups if group.device.kind != "cpu"]
        names = accelerators or [group.name for group in groups]
    if len(names) == len(groups):
        return cluster
    if not cluster.of_groups_is_connected(names):
        text = f"without the other machines, {', '.join(names)} cannot reach each other."
        raise SpecError.of([Fault(field="cluster", problem=text, mend="Join them by a switch, or pin another device.")])
    return cluster.of_groups(names)


def is_mixed(problem: Problem) -> bool:
    """Whether devices of more than one type may train."""
    return len({group.device.name for group in taking_part(problem).machine_groups}) > 1


def one_type(problem: Problem, machines: Collection[str] = ()) -> Cluster:
    """Return the machines of the only type of device: of all that may train, or of those that ``machines`` names.

    Raises
    ------
    SpecError
        If there are several types.
    """
    whole = taking_part(problem)
    groups = [group for group in whole.machine_groups if not machines or group.name in machines]
    types = list(dict.fromkeys(group.device.name for group in groups))
    if len(types) > 1:
        text = f"several types of device take part: {', '.join(types)}."
        mend = "Say what each group does, e.g. groups: {NAME: {machines: 2, batch_per_device: 32}}."
        raise SpecError.of([Fault(field="configuration.all_reduce.groups", problem=text, mend=mend)])
    if not types:
        known = ", ".join(group.name for group in whole.machine_groups)
        text = f"none of {', '.join(machines)} may train."
        raise SpecError.of(
            [Fault(field="configuration.all_reduce.machines", problem=text, mend=f"Name some of {known}.")]
        )
    return whole if len({group.device.name for group in whole.machine_groups}) == 1 else whole.of_device(types[0])
