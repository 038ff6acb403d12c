"""Lower bounds on boxes of parameter-server configurations: an objective that none of a box's configurations beats.

Every term of an iteration never decreases with w and b, and never increases with K, but for the batch that is left to
others. So each is taken at its own best corner of the box, see :func:`lower_bounds`. Where the batch may vary, seconds
per sample are bounded on shares scaled up to the largest batch, see :func:`_scaled`.
"""

import numpy as np

from planner.cost import Floats
from planner.families.answer import iterations_of
from planner.families.parameter_server.boxes import Boxes
from planner.families.parameter_server.groups import ready_times_s
from planner.families.parameter_server.space import Site, Space
from planner.models.ssgd_equations import Strategy
from planner.models.stragglers import standard_maximum

__all__ = ["lower_bounds"]

_MOST_NUMBERS = 2**21  # in a table of boxes and gradients


def lower_bounds(space: Space, site: Site, boxes: Boxes) -> Floats:
    """Return, for every box, an objective that none of its configurations beats.

    Pushes end no sooner than any of these: all servers' links as one and with all their bandwidth, from the time on
    when some gradient is ready; the link of one worker; the fullest server's link from the first gradient on; the
    computation of every group that works, and of all machines of the box with the batch in parts as fast as they
    are. Pulls take as long as the busiest link needs. Every gradient of a piece is counted as ready with the
    first one. Compression shrinks each of these alone as it is best, which none does better.
    """
    k_low, k_high, w_low, w_high, _, _ = boxes.parts
    batch, shares = _scaled(space, boxes)
    works, serving = w_low > 0, space.index_of(site)
    at_home = np.zeros(len(space.groups))
    if site.co_located:
        at_home[serving] = 1.0
    ready = _ready_s(space, shares)  # boxes x groups x pieces
    sizes = np.add.reduceat(space.size_bytes, space.starts) if len(space.starts) else np.zeros(0)
    still = np.cumsum(sizes[::-1])[::-1]
    pooled = k_high * site.server_bytes_per_s
    load_s = space.loads_bytes[k_high - 1] / site.server_bytes_per_s
    num_workers = _least_workers(space, boxes)
    senders = num_workers - float(site.co_located)
    sent = np.maximum(w_low - at_home, 0.0)
    own = np.where((at_home > 0) & (w_low <= k_high[:, None]), 1 - 1 / k_low[:, None], 1.0)
    first_s = np.where(w_high > 0, ready[:, :, 0], np.inf).min(axis=1) if len(sizes) else np.zeros(len(boxes))
    ends = [_least_compute_s(space, boxes, shares, batch), _row_s(space, first_s, senders * load_s)]
    for group in range(len(space.groups)):
        mine = ready[:, group, :]
        late = ready[:, :, None, :] >= mine[:, None, :, None]  # boxes x groups x thresholds x pieces
        arriving = np.einsum("bgtp,p,bg->bt", late, sizes, sent)
        rows = _row_s(space, mine, arriving / pooled[:, None])
        fullest = (late[:, :, 0, 0] * sent).sum(axis=1) * load_s  # of what is ready no sooner than the group's first
        rows[:, 0] = np.maximum(rows[:, 0], _row_s(space, mine[:, 0], fullest))
        rows = np.maximum(rows, _row_s(space, mine, own[:, group, None] * still / space.rates[group]))
        ends.append(np.where(works[:, group], rows.max(axis=1, initial=0.0), 0.0))
    pull_s = np.maximum(
        senders * load_s, (np.where(works, own, 0.0) * space.size_bytes.sum() / space.rates).max(axis=1)
    )
    busy_s = np.max(ends, axis=0) + pull_s + _constants_s(space, site, boxes, num_workers)
    read = batch if space.fixed_batch is not None or space.is_batch_scaled else _least_batch(space, boxes, num_workers)
    seconds = _with_input_s(space, boxes, shares, read, busy_s, num_workers)
    return np.asarray(seconds * iterations_of(space.problem, np.maximum(batch, 1.0)))


def _scaled(space: Space, boxes: Boxes) -> tuple[Floats, Floats]:
    """Return the largest batch of each box, and the least shares with which it could be made.

    Where the batch may vary, an iteration of the batch B on shares b takes no less than B / Z of one of the largest
    batch Z on shares b Z / B: every term is a part proportional to the shares, and a constant. Hence Z bounds the
    seconds per sample, on shares ``b_g Z / B >= low_g Z / (w_g d_g low_g + what the others can take at most)``.
    """
    _, _, _, w_high, b_low, b_high = boxes.parts
    most, least = w_high * space.devices * b_high, b_low.astype(float)
    total = most.sum(axis=1)
    batch = np.minimum(total, space.most_batch).astype(float)
    if not space.is_batch_scaled:
        return batch, least
    taken = w_high * space.devices * b_low + (total[:, None] - most)
    return batch, np.maximum(least, least * batch[:, None] / np.maximum(taken, 1))


def _ready_s(space: Space, shares: Floats) -> Floats:
    """Return when each group (second axis) is ready with the first gradient of each piece (last axis)."""
    at_a_time = max(1, _MOST_NUMBERS // max(1, len(space.size_bytes)))  # a box has a row of all gradients
    ready = np.empty((len(shares), len(space.groups), len(space.starts)))
    for index, (group, gradients) in enumerate(zip(space.groups, space.gradients, strict=True)):
        for first in range(0, len(shares), at_a_time):
            rows = slice(first, first + at_a_time)
            times_s = ready_times_s(space.problem, group, gradients, shares[rows, index])
            ready[rows, index] = times_s[:, space.starts]
    return ready


def _least_workers(space: Space, boxes: Boxes) -> Floats:
    """Return the fewest machines that work."""
    _, _, w_low, w_high, _, b_high = boxes.parts
    least = np.maximum(w_low.sum(axis=1), 1)
    if space.fixed_batch is not None:
        most = np.where(w_high > 0, space.devices * b_high, 1).max(axis=1)
        least = np.maximum(least, -(-space.fixed_batch // most))
    return np.asarray(least, dtype=float)


def _least_batch(space: Space, boxes: Boxes, num_workers: Floats) -> Floats:
    """Return the fewest samples of an iteration, where neither the batch is fixed nor shares are scaled."""
    _, _, w_low, w_high, b_low, _ = boxes.parts
    on_machine = space.devices * b_low
    each = np.where(w_high > 0, on_machine, np.inf).min(axis=1)
    least = np.maximum((w_low * on_machine).sum(axis=1), num_workers * np.where(np.isfinite(each), each, 0.0))
    return np.asarray(np.minimum(least, space.most_batch))


def _least_compute_s(space: Space, boxes: Boxes, shares: Floats, batch: Floats) -> Floats:
    """Return the least forward and backward seconds of the slowest group, and of all sharing the batch."""
    _, _, w_low, w_high, _, _ = boxes.parts
    own_s = np.where(w_low > 0, shares * space.sample_s, 0.0).max(axis=1)
    if space.fixed_batch is not None or space.is_batch_scaled:
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(w_high > 0, w_high * space.devices / space.sample_s, 0.0).sum(axis=1)
            own_s = np.maximum(own_s, np.where(rate > 0, batch / rate, 0.0))
    return np.asarray(own_s)


def _row_s(space: Space, from_s: Floats, sent_s: Floats) -> Floats:
    """Return ``from + kept sent + scale / kept**2`` for the best kept share, or ``from + sent`` uncompressed."""
    option = space.problem.compression
    if option is None:
        return np.asarray(from_s + sent_s)
    sent = np.asarray(sent_s, dtype=float)
    ratio = np.divide(2 * option.scale_s, sent, out=np.full(sent.shape, np.inf), where=sent > 0)  # send all of nothing
    kept = np.clip(np.cbrt(ratio), 1 - option.most_removed, 1.0)
    return np.asarray(from_s + np.minimum(sent_s, sent_s * kept + option.scale_s / kept**2))


def _constants_s(space: Space, site: Site, boxes: Boxes, num_workers: Floats) -> Floats:
    """Return latency, queueing, stragglers, overhead and the update."""
    k_low, _, w_low, w_high, _, _ = boxes.parts
    fitted, serving = space.problem.calibration, space.index_of(site)
    far = w_low > 0
    if site.co_located:
        far = far.copy()
        far[:, serving] &= (k_low > 1) | (w_low[:, serving] > 1)
    latency_s = np.where(far, np.array(site.latency_s), 0.0).max(axis=1)
    exchanges = (num_workers > 1) | far.any(axis=1) | (not site.co_located)
    may_be_one = ((w_high > 0) & (space.devices == 1)).any(axis=1) & ~((w_low > 0) & (space.devices > 1)).any(axis=1)
    overhead_s = np.where(exchanges | ~may_be_one, fitted.overhead_s, 0.0)
    any_update = np.where(w_high > 0, space.update_s, np.inf).min(axis=1)
    update_s = np.maximum(np.where(w_low > 0, space.update_s, 0.0).max(axis=1), any_update)
    noise_s = np.zeros(len(boxes))
    if fitted.straggler_deviation_s:
        noise_s = np.array([standard_maximum(int(number)) for number in num_workers])
    return np.asarray(
        2 * latency_s
        + np.where(exchanges, 2 * site.queueing_s, 0.0)
        + fitted.straggler_deviation_s * noise_s
        + overhead_s
        + update_s
    )


def _with_input_s(
    space: Space, boxes: Boxes, shares: Floats, whole_batch: Floats, busy_s: Floats, num_workers: Floats
) -> Floats:
    """Return the seconds with what the devices wait for input, which is never less for a busier iteration."""
    _, _, w_low, _, _, _ = boxes.parts
    strategy, pipelined = (
        Strategy(space.problem.calibration.strategy),
        space.problem.calibration.is_prefetch_pipelined,
    )
    total_s = busy_s
    for index, group in enumerate(space.groups):
        readers = np.ones(len(boxes))
        if space.problem.training.measured_read_s(space.problem.profiles[group.device.name], group) is None and (
            store := group.storage
        ):
            readers = np.array([float(store.num_readers(int(number))) for number in num_workers])
        read, decode, copy = (one * shares[:, index] for one in space.inputs[index])
        read = read * readers + space.batch_reads_s[index] * whole_batch
        reading = np.maximum(read, decode) if pipelined else read + decode
        if strategy.copies_ahead:
            with_input = np.maximum(busy_s, np.maximum(reading, copy) if pipelined else reading + copy)
        elif strategy.reads_ahead:
            with_input = np.maximum(busy_s + copy, reading if pipelined else reading + copy)
        else:
            with_input = busy_s + reading + copy
        total_s = np.maximum(total_s, np.where(w_low[:, index] > 0, with_input, busy_s))
    return total_s
