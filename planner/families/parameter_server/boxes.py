"""Boxes of parameter-server configurations: many at once, without what cannot be in any of them, and how they split.

A box holds all rows ``(K, w_1..w_G, b_1..b_G)``, see :mod:`planner.families.parameter_server.space`, between two.

**Constraints.** Devices that work, ``sum d_g w_g``, and machines that work or serve, ``sum w_g (+ K)``, within their
limits and as pinned; no idle machine that may work, where the number of devices is not open; ``w_s + K <= count_s`` on
machines of their own, ``K <= w_s`` on working ones; ``b_g`` within memory. Shares make the batch B, or at most the
largest one allowed, where some devices may have one sample less than their group's share. Shares are *minimal*: none
can be lowered alone without falling short of B. No other shares need be tried, since nothing gets faster with more
samples on some device at the same batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.families.parameter_server.space import Numbers, Site, Space

__all__ = ["Boxes", "root", "split", "tightened"]

_PASSES = 4  # of propagation; more would tighten further, fewer never lose a configuration


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Many boxes on one site: least and greatest rows, each ``(K, w.., b..)``."""

    low: Numbers
    high: Numbers

    def __len__(self) -> int:
        return len(self.low)

    def of(self, chosen: "NDArray[np.bool_] | NDArray[np.intp]") -> "Boxes":
        """Return some of the boxes."""
        return Boxes(self.low[chosen], self.high[chosen])

    @property
    def parts(self) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]:
        """The least and greatest K, w and b."""
        g = self.low.shape[1] // 2
        low, high = self.low, self.high
        return low[:, 0], high[:, 0], low[:, 1 : g + 1], high[:, 1 : g + 1], low[:, g + 1 :], high[:, g + 1 :]

    @property
    def are_points(self) -> "NDArray[np.bool_]":
        """Whether they hold one configuration each."""
        return np.asarray((self.low == self.high).all(axis=1))

    @staticmethod
    def together(parts: "Sequence[Boxes]") -> "Boxes":
        """Return all boxes of several sets."""
        return Boxes(np.concatenate([one.low for one in parts]), np.concatenate([one.high for one in parts]))


def root(space: Space, site: Site, num_servers: int | None = None) -> Boxes:
    """Return the box of all configurations of a site, or of those with so many servers."""
    number = space.problem.fixed.get("num_parameter_servers") if num_servers is None else num_servers
    most = space.most_servers(site) if number is None else number
    least = np.full(len(space.groups), space.fixed_share or 1)
    largest = np.maximum(space.most_samples, 1) if space.fixed_share is None else least
    working = np.where(space.most_samples >= least, space.counts, 0)
    low = np.concatenate(([number or 1], 0 * working, least))
    high = np.concatenate(([min(most, site.servers.count)], working, largest))
    return Boxes(low[None, :].astype(np.int64), high[None, :].astype(np.int64))


def tightened(space: Space, site: Site, boxes: Boxes) -> Boxes:
    """Return the boxes without what cannot be in any configuration, and without empty ones."""
    boxes = Boxes(boxes.low.copy(), boxes.high.copy())
    for _ in range(_PASSES):
        if not len(boxes):
            break
        _tighten_counts(space, site, boxes)
        _tighten_shares(space, boxes)
        _, _, w_low, w_high, b_low, b_high = boxes.parts
        absent = w_high <= 0
        b_low[absent], b_high[absent] = 1, 1
        undecided_empty = (b_low > b_high) & (w_low <= 0)
        w_high[undecided_empty] = np.minimum(w_high, 0)[undecided_empty]
        b_low[undecided_empty], b_high[undecided_empty] = 1, 1
        boxes = boxes.of((boxes.low <= boxes.high).all(axis=1) & _may_make_batch(space, boxes))
    return boxes


def _tighten_counts(space: Space, site: Site, boxes: Boxes) -> None:
    """Keep devices and machines within their limits, in place."""
    devices, machines, serving = space.num_devices, space.num_machines, space.index_of(site)
    ones = np.ones(len(space.groups))
    own = 0.0 if site.co_located else 1.0
    most_devices = min(space.most_batch // (space.fixed_share or 1), devices.most or space.most_batch)
    _linear(boxes, np.append(0.0, space.devices), devices.least, most_devices)
    _linear(boxes, np.append(own, ones), machines.least, machines.most)
    _linear(boxes, np.append(own if serving >= 0 else 0.0, ones), space.problem.busy_machines, None)
    _linear(boxes, np.append(0.0, ones), 1, None)
    if serving >= 0:
        row = np.zeros(len(space.groups) + 1)
        row[0], row[serving + 1] = 1.0, -1.0 if site.co_located else 1.0
        _linear(boxes, row, None, 0 if site.co_located else site.servers.count)


def _tighten_shares(space: Space, boxes: Boxes) -> None:
    """Keep shares minimal and up to the batch, in place."""
    if space.fixed_share is not None:
        return
    _, _, w_low, w_high, b_low, b_high = boxes.parts
    most, fixed = space.most_batch, space.fixed_batch
    if fixed is not None:
        capacity = w_high * space.devices * b_high
        missing = fixed - (capacity.sum(axis=1, keepdims=True) - capacity)
        np.maximum(b_low, -(-missing // np.maximum(w_high * space.devices, 1)), out=b_low, where=w_high > 0)
        np.maximum(w_low, -(-missing // np.maximum(space.devices * b_high, 1)), out=w_low)
    if space.is_equal:
        _tie_shares(space, boxes)
        return
    used = w_low * space.devices * b_low
    left = most - 1 - (used.sum(axis=1, keepdims=True) - used)
    largest = np.maximum(left // (np.maximum(w_low, 1) * space.devices) + 1, 1)
    np.minimum(b_high, largest, out=b_high)


def _tie_shares(space: Space, boxes: Boxes) -> None:
    """Give all groups the same range of shares, in place."""
    _, _, w_low, w_high, b_low, b_high = boxes.parts
    most = np.maximum((w_high * space.devices).sum(axis=1), 1)
    least = np.maximum((w_low * space.devices).sum(axis=1), 1)
    batch = space.fixed_batch
    low = np.where(w_low > 0, b_low, 1).max(axis=1)
    high = np.where(w_low > 0, b_high, 2**31).min(axis=1)
    if batch is not None:
        low = np.maximum(low, -(-batch // most))
    high = np.minimum(high, -(-space.most_batch // least))
    np.maximum(b_low, low[:, None], out=b_low, where=w_high > 0)
    np.minimum(b_high, high[:, None], out=b_high, where=w_high > 0)


def _may_make_batch(space: Space, boxes: Boxes) -> "NDArray[np.bool_]":
    """Whether the shares can make the batch."""
    if space.fixed_batch is None:
        return np.ones(len(boxes), dtype=bool)
    _, _, _, w_high, _, b_high = boxes.parts
    enough: NDArray[np.bool_] = (w_high * space.devices * b_high).sum(axis=1) >= space.fixed_batch
    return enough


def _linear(boxes: Boxes, row: Floats, least: float | None, most: float | None) -> None:
    """Keep ``least <= row (K, w) <= most``, in place; coefficients of any sign."""
    width = len(row)
    low, high = boxes.low[:, :width], boxes.high[:, :width]
    down, up = np.where(row > 0, low, high) * row, np.where(row > 0, high, low) * row
    for index in np.flatnonzero(row).tolist():
        factor = row[index]
        if most is not None:
            room = (most - (down.sum(axis=1) - down[:, index])) / factor
            if factor > 0:
                np.minimum(high[:, index], np.floor(room + 1e-9).astype(np.int64), out=high[:, index])
            else:
                np.maximum(low[:, index], np.ceil(room - 1e-9).astype(np.int64), out=low[:, index])
        if least is not None:
            need = (least - (up.sum(axis=1) - up[:, index])) / factor
            if factor > 0:
                np.maximum(low[:, index], np.ceil(need - 1e-9).astype(np.int64), out=low[:, index])
            else:
                np.minimum(high[:, index], np.floor(need + 1e-9).astype(np.int64), out=high[:, index])


# -- splitting --------------------------------------------------------------------------------------------------------


def split(space: Space, site: Site, boxes: Boxes) -> Boxes:
    """Return two halves of every box: of the number on which its seconds may depend most."""
    k_low, k_high, w_low, w_high, b_low, _ = boxes.parts
    both_s = 2 * space.size_bytes.sum() / site.server_bytes_per_s
    k_effect = np.maximum(w_low.sum(axis=1), 1) * both_s * (1 / k_low - 1 / k_high)
    w_effect = (w_high - w_low) * both_s / k_high[:, None] + (w_low == 0) * space.sample_s * b_low
    b_effect = space.sample_s * _spread(space, boxes)
    effect = np.concatenate((k_effect[:, None], w_effect, b_effect), axis=1) + 1e-30
    effect = np.where(boxes.high > boxes.low, effect, -1.0)
    effect[:, 1 + len(space.groups) :][w_low == 0] = -1.0  # whether a group works at all comes before its share
    at, rows = effect.argmax(axis=1), np.arange(len(boxes))
    low, high = boxes.low[rows, at], boxes.high[rows, at]
    middle = np.where(high > 4 * low, np.sqrt(np.maximum(low, 0.0) * high).astype(np.int64), (low + high) // 2)
    middle = np.where(low == 0, 0, np.clip(middle, low, high - 1))
    left, right = Boxes(boxes.low.copy(), boxes.high.copy()), Boxes(boxes.low.copy(), boxes.high.copy())
    left.high[rows, at] = middle
    right.low[rows, at] = middle + 1
    return Boxes.together((left, right))


def _spread(space: Space, boxes: Boxes) -> Floats:
    """Return between how many samples shares are that matter: none where one group alone makes a batch that varies.

    Its seconds per sample are best on the largest share of the box, which is what their bound is made of.
    """
    _, _, _, w_high, b_low, b_high = boxes.parts
    is_alone = ((w_high > 0).sum(axis=1, keepdims=True) == 1) & space.is_batch_scaled
    return np.where(is_alone, 0.0, b_high - b_low)
