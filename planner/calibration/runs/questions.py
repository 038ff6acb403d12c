"""A measured run as an ordinary question."""

from typing import Any

from planner.calibration.runs import all_reduce_spec
from planner.calibration.runs.run_facts import Run

__all__ = ["to_spec"]


def to_spec(run: Run) -> dict[str, Any]:
    """Return the spec of a run, for :func:`planner.load`: its network, machines, curve, and how it was configured."""
    if run.family.is_all_reduce:
        return all_reduce_spec.to_spec(run)
    # Imported here: it simulates servers, which other runs have no use for.
    from planner.calibration.runs.parameter_server import to_spec as servers_to_spec  # noqa: PLC0415

    return servers_to_spec(run)
