"""The algorithm of all-reduces as NCCL takes it: one for all of them, or its own choice.

``NCCL_ALGO`` is documented in NVIDIA's "NCCL User Guide", Environment Variables (2.27): names of algorithms among which
the library may choose, for the whole program.
"""

from planner.families.all_reduce.configuration import AllReduceConfiguration

__all__ = ["nccl_lines", "nccl_notes"]

_NAMES = {"ring": "Ring", "tree": "Tree"}


def nccl_lines(kind: str, fused: AllReduceConfiguration | None) -> tuple[str, ...]:
    """Return the line that asks for the plan's algorithm, where it is the same for all groups and NCCL has it."""
    algorithms = _algorithms(fused)
    if kind == "gpu" and len(algorithms) == 1 and algorithms[0] in _NAMES:
        return (f'export NCCL_ALGO="${{NCCL_ALGO:-{_NAMES[algorithms[0]]}}}"',)
    return ()


def nccl_notes(kind: str, fused: AllReduceConfiguration | None) -> tuple[str, ...]:
    """Return what NCCL cannot be told; CPUs exchange by gloo, which cannot be told anything."""
    algorithms = _algorithms(fused)
    if kind == "cpu":
        words = f"algorithms: the plan takes {', '.join(algorithms)}; gloo, by which CPUs exchange, chooses by itself"
        return (words,) if algorithms else ()
    named = [one for one in algorithms if one in (*_NAMES, "two_level")]
    if len(algorithms) > 1 and named:
        return (
            f"algorithms: the plan takes {', '.join(algorithms)} by group; NCCL_ALGO holds for all of them, so NCCL is "
            f"left to choose by size, as it does by itself",
        )
    if named == ["two_level"]:
        return ("algorithm: two_level has no name in NCCL, which chooses by itself; its trees exchange so, too",)
    return ()


def _algorithms(fused: AllReduceConfiguration | None) -> list[str]:
    """Return the algorithms of a plan's groups, each once."""
    return [] if fused is None else list(dict.fromkeys(group.algorithm for group in fused.fusion_groups))
