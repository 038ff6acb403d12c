"""The error of one key of a given configuration."""

from collections.abc import Mapping

from planner.errors import Fault, SpecError
from planner.models.compression import Compression
from planner.problem import Problem
from planner.routes import routes_of


def wrong(family: str, key: str, value: object, problem: str, mend: str = "Mend this value.") -> SpecError:
    """Return the error of ``configuration.family.key``, with the value that was given."""
    return SpecError.of([Fault(field=f"configuration.{family}.{key}", value=str(value), problem=problem, mend=mend)])


# --- Compression of gradients, as a given configuration says it


def compression_of(given: Mapping[str, float] | None) -> Compression | None:
    """Return the compression of a block."""
    return None if given is None else Compression(removed=given["removed"], scale_s=given["time"])


# --- Links between switches, which families with a link model of machines alone cannot share out


def check_inner_links(problem: Problem, family: str) -> None:
    """Refuse a network whose links between switches could bind before the machines' own links do.

    Raises
    ------
    SpecError
        With the narrowest of them, its rate, and what all machines together would need.
    """
    cluster = problem.cluster
    if not cluster.links or routes_of(cluster).is_non_blocking:
        return
    needed = sum(cluster.own_link(group.name).bandwidth_bytes_per_s * group.count for group in cluster.machine_groups)
    # The narrowest link that transfers of several machines may meet on; else machines have cards that lead not to all.
    inner = [link for link in cluster.links if cluster.forwards(link[0]) and cluster.forwards(link[1])]
    rates = [(cable.bandwidth_bytes_per_s * cluster.num_cables(one, other), one, other) for one, other, cable in inner]
    if rates and min(rates)[0] >= needed:
        return
    rates = rates or [(link.bandwidth_bytes_per_s, one, other) for one, other, link in cluster.links]
    rate, first, second = min(rates)
    text = f"{family} does not model the link {first} - {second} of {rate:.4g} B/s, which all machines may share."
    mend = (
        f"Give links between switches room for all machines ({needed:.4g} B/s on one, or spread over spines without "
        f"oversubscription), put the machines on one switch, or ask all_reduce."
    )
    raise SpecError.of([Fault(field="cluster.links", value=f"{rate:.4g} B/s", problem=text, mend=mend)])
