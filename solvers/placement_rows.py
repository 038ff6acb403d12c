"""What a placement of tensors on servers costs: rows linear in it. The formulation is in ``solvers/placement.py``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.fifo import fifo_end_s

__all__ = ["Arrivals", "Placement", "arrivals", "least_pull_s", "least_push_s", "lower_bound", "objective"]

Placement = tuple[int, ...]

_MOST_NUMBERS, _LEAST_TIMES = 2**23, 16  # in a table of times and tensors: 64 MiB; and times that are kept at least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrivals:
    """What a placement costs, linear in it; see the formulation.

    Attributes
    ----------
    size_bytes
        ``p_j`` of every tensor.
    from_s
        The times t, one per row.
    senders
        ``c_j(t)``: a row for each time, a column for each tensor.
    server_bytes_per_s
        ``B_s``.
    num_pullers
        Workers that pull from a server over its link.
    least_push_s, least_pull_s
        What pushes and pulls take at least, wherever tensors lie.
    is_whole
        Whether all times are there; else some were left out for their number, which relaxes the model.
    """

    size_bytes: Floats
    from_s: Floats
    senders: Floats
    server_bytes_per_s: Floats
    num_pullers: float
    least_push_s: float = 0.0
    least_pull_s: float = 0.0
    is_whole: bool = True

    @property
    def num_servers(self) -> int:
        """Servers."""
        return len(self.server_bytes_per_s)

    @property
    def sent_bytes(self) -> Floats:
        """What arrives at or after each time (row) of each tensor (column), at whichever server."""
        return self.senders * self.size_bytes


def arrivals(
    ready_s: ArrayLike,
    size_bytes: ArrayLike,
    server_bytes_per_s: ArrayLike,
    *,
    worker_counts: Sequence[int],
    worker_bytes_per_s: Sequence[float],
    pulled_bytes: ArrayLike | None = None,
    home_kind: int | None = None,
    least_push_s: float = 0.0,
    is_guide: bool = False,
) -> Arrivals:
    """Return what placements cost.

    Parameters
    ----------
    ready_s
        When each kind of workers (row) has computed each tensor (column), nondecreasing along a row.
    worker_counts, worker_bytes_per_s
        Of each kind: how many, and each one's link, ``inf`` where it is no bottleneck.
    pulled_bytes
        Of each tensor, where pushes are compressed and pulls are not; left out, as much as is pushed. The ratio of
        both is one for all tensors.
    home_kind
        The kind of which one worker is on the machine of every server; left out, servers have machines of their own.
    is_guide
        Whether workers with a server at home send at the pace of their links, with an even part of all tensors at home:
        nearer to the model, and no bound on it. Else they send at once, which is one.
    """
    ready, sizes = np.atleast_2d(np.asarray(ready_s, dtype=float)), np.asarray(size_bytes, dtype=float)
    servers, whole = np.asarray(server_bytes_per_s, dtype=float), sizes if pulled_bytes is None else pulled_bytes
    total, pulled = float(sizes.sum()), float(np.sum(whole))
    at_home = len(servers) if home_kind is not None else 0
    spans, least_push, least_pull = [], max(least_push_s, float(ready.max(initial=0.0))), 0.0
    for kind, (row, count, rate) in enumerate(zip(ready, worker_counts, worker_bytes_per_s, strict=True)):
        end = fifo_end_s(row, sizes / rate)
        alone = count - (at_home if kind == home_kind else 0)
        if alone:
            spans.append((np.maximum(row, np.append(0.0, end[:-1])), end, alone))
            least_push, least_pull = max(least_push, float(end[-1])), max(least_pull, pulled / rate)
        if kind == home_kind:  # the mean of all servers is at home
            share = 1 - 1 / len(servers)
            end = fifo_end_s(row, sizes * share / rate)
            start = np.maximum(row, np.append(0.0, end[:-1]))
            spans.append((*((start, end) if is_guide else (row, row)), at_home - 1))
            least_push = max(least_push, float(end[-1]))
            least_pull = max(least_pull, pulled * share / rate)
    at = np.unique(np.concatenate([np.concatenate(span[:2]) for span in spans]))
    most = max(_LEAST_TIMES, _MOST_NUMBERS // len(sizes))
    if not (is_whole := len(at) <= most):
        at = at[np.unique(np.linspace(0, len(at) - 1, most).round().astype(int))]
    return Arrivals(
        size_bytes=sizes,
        from_s=at,
        senders=np.sum([number * _still_to_come(start, end, at) for start, end, number in spans], axis=0),
        server_bytes_per_s=servers,
        num_pullers=(sum(worker_counts) - (home_kind is not None)) * (pulled / total if total else 1.0),
        least_push_s=least_push,
        least_pull_s=least_pull,
        is_whole=is_whole,
    )


def _still_to_come(start_s: Floats, end_s: Floats, at_s: Floats) -> Floats:
    """Return the share of each tensor (column) that arrives at or after each time (row)."""
    span = end_s - start_s
    done = np.divide(at_s[:, None] - start_s, span, out=(at_s[:, None] > start_s).astype(float), where=span > 0)
    return np.asarray(1.0 - np.clip(done, 0.0, 1.0))


def objective(given: Arrivals, placement: Placement) -> float:
    """Return ``push + pull`` of a placement."""
    at = np.zeros((len(placement), given.num_servers))
    at[np.arange(len(placement)), list(placement)] = 1.0
    push = (given.from_s[:, None] + given.sent_bytes @ at / given.server_bytes_per_s).max(initial=given.least_push_s)
    pull = (given.num_pullers * (given.size_bytes @ at) / given.server_bytes_per_s).max(initial=given.least_pull_s)
    return float(push + pull)


def lower_bound(given: Arrivals) -> float:
    """Return seconds that no placement beats."""
    return least_push_s(given) + least_pull_s(given)


def least_push_s(given: Arrivals) -> float:
    """Return the bound on pushes: all servers as one, and whole tensors."""
    sent, rates = given.sent_bytes, given.server_bytes_per_s
    pooled = (given.from_s + sent.sum(axis=1) / rates.sum()).max(initial=0.0)
    whole = (given.from_s + _crowded(sent, len(rates)) / rates.max()).max(initial=0.0)
    return float(max(given.least_push_s, pooled, whole))


def least_pull_s(given: Arrivals) -> float:
    """Return the bound on pulls."""
    rates, sizes = given.server_bytes_per_s, given.size_bytes
    fullest = max(float(sizes.sum() / rates.sum()), float(_crowded(sizes[None, :], len(rates))[0] / rates.max()))
    return max(given.least_pull_s, given.num_pullers * fullest)


def _crowded(rows: Floats, num_servers: int) -> Floats:
    """Return, for each row of sizes, what some server holds at least: m + 1 of the largest m S + 1."""
    down = -np.sort(-rows, axis=1)[:, ::num_servers]
    return np.asarray((down * np.arange(1, down.shape[1] + 1)).max(axis=1, initial=0.0))
