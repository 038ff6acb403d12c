"""The seconds of an iteration of given machines by the shares of their devices."""

import numpy as np

from planner.cost import Affine, Floats, TransferCost
from planner.families.all_reduce.forms import Ints
from planner.families.all_reduce.mixed_team import Shape, Team
from planner.models.collectives import cheapest_of
from planner.models.input import stall_s
from planner.solvers.shares import finish_times_s

__all__ = ["LeafCost"]

_MOST_NUMBERS = 2**20  # in a table of gradients


class LeafCost:
    """Seconds of an iteration of one shape by the shares, at a given share of gradients kept.

    ``batch``: the most samples of an iteration; where shares make more, some devices have one sample less.

    Without input and compression where ``has_input`` is false and gradients are compressed, see
    :meth:`planner.families.all_reduce.mixed_boxes.MixedBoxes.solve`; all of it otherwise.
    """

    def __init__(
        self, team: Team, shape: Shape, kept: float | None, *, batch: int, has_input: bool | None = None
    ) -> None:
        self.shape = shape
        self.cost = team.cost_of(shape)
        self.batch = batch
        self.machines = sum(shape.machines)
        self.counts = np.array(shape.machines, dtype=np.int64) * self.cost.devices
        self.kept = 1.0 if kept is None else kept
        self.has_input = kept is None if has_input is None else has_input
        self.extra_s = team.compression_s(kept) if self.has_input else 0.0
        costs = list(self.cost.transfer_costs(self.machines, int(self.counts.sum())).values())
        self.transfer: TransferCost = cheapest_of(costs)
        self.sizes = self.cost.gradients.size_bytes * self.kept
        self.is_alone = int(self.counts.sum()) == 1 or not len(self.sizes)
        self.rates = self.cost.input_rates(self.machines)
        is_affine = all(isinstance(one, Affine) for one in costs)
        still_bytes = np.cumsum(self.sizes[::-1])[::-1]
        seconds = self.transfer(still_bytes) if is_affine and len(self.sizes) else np.zeros(len(self.sizes))
        self.tail_s = np.zeros_like(self.sizes) if self.is_alone else seconds

    def most_shares(self, limit_s: Floats) -> Floats:
        """Return the shares that no device can exceed within each limit."""
        size = max(1, _MOST_NUMBERS // max(len(self.sizes), 1))  # limits at a time: each has a row of all gradients
        if len(limit_s) > size:
            parts = [self.most_shares(limit_s[first : first + size]) for first in range(0, len(limit_s), size)]
            return np.concatenate(parts)
        kinds = self.cost.kinds
        left_s = limit_s - self.extra_s
        update_s = float(kinds.update_s.max())
        shares = kinds.most_shares_within(
            left_s, np.broadcast_to(self.tail_s, (len(limit_s), len(self.tail_s))), update_s
        )
        if self.has_input:
            for index, rate in enumerate(self.rates):
                per_sample_s = rate.at(1, 0).bound_s
                if per_sample_s > 0:
                    most = np.floor(limit_s / per_sample_s * (1 + 1e-12) + 1e-9)
                    shares[:, index] = np.minimum(shares[:, index], most)
        return shares

    def least_times_s(self, shares: Ints) -> Floats:
        """Return seconds that no grouping beats."""
        ready_s = self.cost.kinds.ready_s(shares)
        if not ready_s.shape[1]:
            return self._ended_s(shares, None)
        return self._ended_s(shares, (ready_s + self.tail_s).max(axis=1))

    def times_s(self, shares: Ints) -> Floats:
        """Return the seconds of an iteration with the best groups."""
        if self.is_alone:
            return self._ended_s(shares, None)
        ready_s = self.cost.kinds.ready_s(shares)
        fitted = self.cost.problem.calibration
        finish_s = finish_times_s(ready_s, self.sizes, self.transfer, wait=fitted.wait, timeout_s=fitted.timeout_s)
        return self._ended_s(shares, finish_s)

    def _ended_s(self, shares: Ints, finish_s: Floats | None) -> Floats:
        """Return the seconds of an iteration whose last transfer ends at ``finish_s``."""
        kinds = self.cost.kinds
        end_s: Floats = (kinds.computed_s(shares) + kinds.update_s).max(axis=1)
        if finish_s is not None:
            end_s = np.maximum(end_s, finish_s + float(kinds.update_s.max()))
        busy_s = end_s + self.extra_s
        return self._with_input(shares, busy_s) if self.has_input else busy_s

    def _with_input(self, shares: Ints, busy_s: Floats) -> Floats:
        """Return the seconds of an iteration that is busy for so long, waiting for input included."""
        strategy = self.cost.strategy
        whole_s = busy_s
        totals = np.minimum(shares @ self.counts, self.batch)
        for index, rate in enumerate(self.rates):
            if rate.at(1, 1).bound_s > 0:
                rows = zip(shares[:, index].tolist(), totals.tolist(), busy_s.tolist(), strict=True)
                own_s = [busy + stall_s(rate.at(share, total), busy, strategy) for share, total, busy in rows]
                whole_s = np.maximum(whole_s, own_s)
        return whole_s
