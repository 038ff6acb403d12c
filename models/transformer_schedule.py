"""Seconds of a pipelined step from those of its stages, for many layouts at once: closed forms, and bounds.

p devices hold the layers in order, v virtual stages (chunks) each; m micro-batches. The orders of their tasks, and the
longest paths that these forms are tested against, are those of :mod:`planner.models.schedule`. Closed forms hold where
all devices between the first and the last are equal; the first has the embedding besides, the last the head, and either
may have more or fewer layers. Bounds hold for any even cut. f_i and b_i are forward and backward of device i for one
micro-batch, ``x_i = f_i + b_i``, c is one transfer, X is ``sum x_i + 2 (p - 1) c``, and ``w_i = p - i`` with i from 0.

- **GPipe** [H]: a line of forwards, then one of backwards:
  ``sum f + (p-1) c + (m-1) max(f, c) + sum b + (p-1) c + (m-1) max(b, c)``. Exact for any stages.
- **1F1B** [N]: all orders are fixed, so a step is the longest path through its tasks. ``F_i(k)`` leads down to any
  stage, turns there into a backward, and back on stage i into ``F_i(k + 1 + stages gone down)``. Of these paths the
  closed form takes the longest of six kinds, i being the first device, the second, or the last:
  q times through all stages, once from i to the end, and ``n = m - 1 - (q-1) p - w_i`` times i alone, for q = 1 and
  for the greatest q that leaves ``n >= 0``: ``q X + S_i + n x_i``, ``S_i = sum over j >= i of x_j + 2 (p-1-i) c``; as
  often through all stages as goes, and the last few that are left; once through all, and i alone in warm-up or drain:
  ``X + (m - w_i) x_i + (w_i - 1) max(f_i, b_i)``; ``X + (m-1) max(f_i, b_i)``; ``m x_i`` behind the stages before it.
  A sixth dwells on a channel: ``X + (m - 1) c``.
  Exact for equal stages and ``c <= min(f, b)``, where it is ``(m+p-1) x + 2 c (m+p-1 - ceil((m+p-1) / p))``.
- **Interleaved** [N]: likewise, of paths through a device that never pauses once it is reached; exact for equal stages
  and ``c <= min(f, b) / v``: ``m x + (p-1) x / v + 2 c (p v - 1)``.
- **ZB-H1** [Q], with ``w`` the gradient of the weights and b the rest of the backward, the paths of 1F1B through single
  devices; exact for equal stages, no transfer and ``m >= p``: ``m (f+b+w) + (p-1) (b + max(f-w, 0))``. For ``w <= f``
  that is the bubble ``(p-1) (f+b-w)`` of [Q], table 2. There are no chunks; layouts with chunks get infinity.

Each form but GPipe's is the length of paths that exist, so it never exceeds the simulated schedule; how far it stays
below is measured in ``tests/models/test_transformer_schedule.py``. The paths of 1F1B that dwell on one stage exist
whatever the stages: over all of them, they bound uneven cuts (:func:`path_bound_s`). Transfers run beside computing, or
block the sender (:meth:`Stages.of`). Leaves out jitter, and any exchange between replicas. Sources: [H] Y. Huang et
al., arXiv:1811.06965; [N] D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2; [Q] P. Qi et al., arXiv:2401.10241.
The paths: own.
"""

from collections.abc import Callable, Sequence

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models.layouts import SCHEDULE_NAMES, Bools, EvenCut, Ints, Layouts, Schedule
from planner.models.orders import devices_of


@frozen(eq=False)
class Device:
    """Seconds of one device for one micro-batch, all its chunks; arrays of one element a layout.

    ``backward_s`` is without the gradients of the weights where those are apart.
    """

    forward_s: Floats
    backward_s: Floats

    @property
    def both_s(self) -> Floats:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@frozen(eq=False)
class Stages:
    """The devices of each layout's pipeline."""

    # first, middle, last: the first and last device, and each of those between; of one device, first and last are the
    # same
    first: Device
    middle: Device
    last: Device
    weights_s: Floats  # part of every device's backward that zero-bubble schedules put off; 0 under the others
    transfer_s: Floats  # of one chunk's output to the next device, beside computing

    @classmethod
    def of(
        cls,
        layouts: Layouts,
        forward_s: Floats,
        backward_s: Floats,
        *,
        first_extra_s: tuple[Floats, Floats] | None = None,
        last_extra_s: tuple[Floats, Floats] | None = None,
        weight_gradient_s: Floats | None = None,
        transfer_s: Floats | None = None,
        is_blocking: bool = False,
    ) -> "Stages":
        """Return the devices of pipelines that are equal but for their ends.

        Parameters
        ----------
        layouts
            n of them; all arrays below have shape (n,) or (1,).
        forward_s, backward_s
            Of a device between first and last, for one micro-batch: all its chunks; backward with the gradients of the
            weights and what is recomputed.
        first_extra_s, last_extra_s
            How much longer forward and backward of the first and of the last device take; less than 0 where they have
            fewer layers.
        weight_gradient_s
            Part of ``backward_s``, the same on every device.
        transfer_s
            Of one chunk's output, or of its error.
        is_blocking
            Whether a device computes nothing while it sends; it then adds to the seconds of the device.
        """
        nothing = np.zeros(1)
        c = nothing if transfer_s is None else transfer_s
        apart_s = nothing if weight_gradient_s is None else weight_gradient_s
        weights_s = np.where(layouts.puts_off, apart_s, 0.0)
        first, last = (extra or (nothing, nothing) for extra in (first_extra_s, last_extra_s))
        sent_s = layouts.interleave * c if is_blocking else nothing
        unsent_s = c if is_blocking else nothing  # the last output and the first error go nowhere
        middle_s = (forward_s + sent_s, backward_s - weights_s + sent_s)
        is_one = layouts.pipeline == 1
        alone = tuple(one + other - sent_s for one, other in zip(first, last, strict=True))

        def device(forward: Floats, backward: Floats) -> Device:
            extra_s = [np.where(is_one, one, other) for one, other in zip(alone, (forward, backward), strict=True)]
            return Device(forward_s=middle_s[0] + extra_s[0], backward_s=middle_s[1] + extra_s[1])

        return cls(
            first=device(first[0], first[1] - unsent_s),
            middle=Device(forward_s=middle_s[0], backward_s=middle_s[1]),
            last=device(last[0] - unsent_s, last[1]),
            weights_s=weights_s,
            transfer_s=nothing if is_blocking else c,
        )

    def kept(self, chosen: Bools) -> "Stages":
        """Return those of some layouts.

        Parameters
        ----------
        chosen
            Whether a layout is one of them; shape (n,).
        """

        def of(array: Floats) -> Floats:
            return np.broadcast_to(array, chosen.shape)[chosen]

        first, middle, last = (
            Device(forward_s=of(one.forward_s), backward_s=of(one.backward_s))
            for one in (self.first, self.middle, self.last)
        )
        return Stages(
            first=first, middle=middle, last=last, weights_s=of(self.weights_s), transfer_s=of(self.transfer_s)
        )

    def sums_s(self, pipeline: Floats) -> tuple[Floats, Floats]:
        """Return the sums over all devices of forwards, and of backwards; shape (n,).

        Parameters
        ----------
        pipeline
            Devices of each layout; shape (n,).
        """
        forward_s, backward_s = (
            np.where(pipeline == 1, first, first + last + (pipeline - 2) * middle)
            for first, middle, last in (
                (self.first.forward_s, self.middle.forward_s, self.last.forward_s),
                (self.first.backward_s, self.middle.backward_s, self.last.backward_s),
            )
        )
        return forward_s, backward_s


def order_name(schedule: Schedule, chunks_per_device: int) -> str:
    """Return what :func:`planner.models.schedule.order_of` calls a layout's schedule.

    Parameters
    ----------
    schedule, chunks_per_device
        Of one layout; 1F1B with several chunks is interleaved.
    """
    plain = "1f1b" if chunks_per_device == 1 else "interleaved"
    return plain if schedule == Schedule.ONE_F_ONE_B else SCHEDULE_NAMES[schedule]


def step_s(stages: Stages, layouts: Layouts) -> Floats:
    """Return the seconds from the start of a step to the end of its last backward, by each layout's schedule.

    Parameters
    ----------
    stages, layouts
        n pipelines, of :meth:`Stages.of`, and their layouts.

    Returns
    -------
    Shape (n,); infinite where a zero-bubble schedule has chunks, which does not exist.
    """
    has_chunks = (layouts.interleave > 1) & (layouts.pipeline > 1)
    is_plain = layouts.schedule == Schedule.ONE_F_ONE_B
    kinds: Sequence[tuple[Bools, Callable[[Stages, Floats, Floats, Floats], Floats]]] = (
        (layouts.schedule == Schedule.GPIPE, _gpipe_s),
        (is_plain & ~has_chunks, _one_forward_one_backward_s),
        (is_plain & has_chunks, _interleaved_s),
        ((layouts.schedule == Schedule.ZB_H1) & ~has_chunks, _zero_bubble_s),
    )
    found = np.full(len(layouts), np.inf)
    for is_kind, seconds_of in kinds:
        chosen = np.broadcast_to(is_kind, len(layouts))
        if chosen.any():
            sizes = (np.broadcast_to(one, len(layouts))[chosen] for one in _sizes(layouts))
            found[chosen] = seconds_of(stages.kept(chosen), *sizes)
    return found


def lower_bound_s(stages: Stages, layouts: Layouts, cut: EvenCut | None = None, sent_s: Floats | None = None) -> Floats:
    """Return seconds that no order of a device's tasks goes below; shape (n,).

    Every device works m micro-batches. Before its first the forward of one chunk has passed the devices before it, and
    behind its last the backward of one goes back through them; gradients of weights may be computed meanwhile.

    Parameters
    ----------
    stages, layouts
        As of :func:`step_s`; those between the ends are as busy as the fullest of them.
    cut
        How many layers each first chunk has; left out: v equal chunks.
    sent_s
        Of a transfer while which its device computes nothing, in place of one beside computing; shape (n,).
    """
    p, m, v = _sizes(layouts)
    c, middle = stages.transfer_s if sent_s is None else sent_s, stages.middle
    found = np.zeros(len(layouts))
    # In layers of a device between the ends: those of the first device behind its first chunk, and of the first chunks
    # between the first device and another. Where there are chunks, what the first device has more lies on its first.
    fullest, behind, between = p - 2, 1 - 1 / v, [np.maximum(p - 3, 0) / v, np.maximum(p - 2, 0) / v]
    if cut is not None:
        most = np.maximum(cut.most, 1)
        fullest, behind = cut.fullest.astype(np.float64), (most - cut.first_less - cut.first_chunk) / most
        between = [np.maximum(one - cut.first_chunk, 0) / most for one in (cut.to_fullest, cut.to_last)]
    first_forward_s = stages.first.forward_s - behind * middle.forward_s
    first_backward_s = stages.first.backward_s - behind * middle.backward_s
    for device, index, chunks in (
        (stages.first, np.zeros(1), np.zeros(1)),
        (middle, fullest, between[0]),
        (stages.last, p - 1, between[1]),
    ):
        head_s = np.where(index > 0, first_forward_s, 0.0) + chunks * middle.forward_s + index * c
        tail_s = np.where(index > 0, first_backward_s, 0.0) + chunks * middle.backward_s + index * c
        own_s = m * device.both_s
        if sent_s is not None:  # the last output and the first error go nowhere; one error is sent behind all work
            times = m * (2 * v - (device is not middle)) - (index > 0)
            own_s = own_s + np.where(p > 1, times, 0.0) * c
        bound_s = head_s + own_s + np.maximum(tail_s, m * stages.weights_s)
        found = np.maximum(found, np.where((device is not middle) | (index > 0), bound_s, 0.0))
    return found


def path_bound_s(forward_s: Floats, backward_s: Floats, stages: Ints, num_microbatches: Ints) -> Floats:
    """Return seconds that 1F1B of stages that all differ is not under: its longest path that dwells on one stage.

    Parameters
    ----------
    forward_s, backward_s
        Of one micro-batch on each stage, what it sends included; shape (p, n), 0 behind a pipeline's last stage.
    stages, num_microbatches
        Of each pipeline, >= 1; shape (n,).

    Returns
    -------
    Shape (n,); :func:`planner.models.schedule.one_forward_one_backward_s` gives the step itself.
    """
    both_s = forward_s + backward_s
    index = np.arange(len(both_s), dtype=np.float64)[:, None]
    before_s = np.cumsum(both_s, axis=0) - both_s
    p, m = stages.astype(np.float64), num_microbatches.astype(np.float64)
    paths_s = _dwelling_s((forward_s, backward_s), index, before_s, both_s.sum(axis=0), p, m)
    return np.asarray(np.where(index < p, paths_s, 0.0).max(axis=0))


def chunk_bound_s(
    forward_s: Floats,
    backward_s: Floats,
    weights_s: Floats,
    *,
    schedule: str,
    num_devices: int,
    num_microbatches: int,
) -> Floats:
    """Return seconds that a schedule of virtual stages does not go below, whatever each of them takes; shape (n,).

    A device does its own work for every micro-batch. Before its first the first virtual stages of the devices ahead of
    it have passed, and behind its last they pass back; gradients of weights may be computed meanwhile.

    Parameters
    ----------
    forward_s, backward_s, weights_s, schedule, num_devices, num_microbatches
        As of :func:`planner.models.schedule.played_s`.
    """
    p, m = num_devices, num_microbatches
    device_of = np.array(devices_of(schedule, p, len(forward_s) // p))
    is_on = (device_of == np.arange(p)[:, None]).astype(np.float64)
    head_s, tail_s = (np.cumsum(one[:p], axis=0) - one[:p] for one in (forward_s, backward_s))
    behind_s = np.maximum(tail_s, m * (is_on @ weights_s))
    return np.asarray((head_s + m * (is_on @ (forward_s + backward_s)) + behind_s).max(axis=0))


def _dwelling_s(
    passes_s: tuple[Floats, Floats], index: Floats, before_s: Floats, all_s: Floats, p: Floats, m: Floats
) -> Floats:
    """Return the longest of the paths of 1F1B that dwell on a device: of each device at ``index``, shape (k, n).

    ``passes_s``: its forward and its backward; ``before_s``: both of the devices before it, and the transfers to it and
    back; ``all_s``: X.
    """
    x = passes_s[0] + passes_s[1]
    # Once through all; in warm-up or drain there are forwards, or backwards, alone.
    lead = np.clip(p - index, 1.0, m)
    once_s = all_s + (m - lead) * x + (lead - 1) * np.maximum(*passes_s)
    alone = m - 1 - (p - index)
    times = np.maximum(np.floor((m - 1 + index) / p), 1.0) - 1
    often_s = 2 * all_s - before_s + alone * x + times * np.maximum(all_s - p * x, 0.0)
    return np.maximum(np.maximum(once_s, before_s + m * x), np.where(alone >= 0, often_s, 0.0))


# -- the schedules -----------------------------------------------------------------------------------------------------


def _gpipe_s(stages: Stages, p: Floats, m: Floats, _: Floats) -> Floats:
    """Return GPipe's step: of two lines of equal jobs; chunks play no part."""
    c = np.where(p > 1, stages.transfer_s, 0.0)
    slowest = []
    for name in ("forward_s", "backward_s"):
        first, middle, last = (getattr(device, name) for device in (stages.first, stages.middle, stages.last))
        slowest.append(np.maximum(np.maximum(first, last), np.maximum(np.where(p > 2, middle, 0.0), c)))
    return np.asarray(sum(stages.sums_s(p)) + 2 * (p - 1) * c + (m - 1) * (slowest[0] + slowest[1]))


def _places(stages: Stages, p: Floats) -> tuple[Floats, tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return the first, the second and the last device; of a short pipeline some are the same.

    Three rows each: indices; forwards and backwards of the devices there; and sums of those before them.
    """
    index = np.array([np.zeros_like(p), np.minimum(p - 1, 1.0), p - 1])
    passes_s, before_s = [], []
    for name, sum_s in zip(("forward_s", "backward_s"), stages.sums_s(p), strict=True):
        first, middle, last = (getattr(device, name) for device in (stages.first, stages.middle, stages.last))
        passes_s.append(np.array([first, np.where(p > 2, middle, last), last]))
        before_s.append(np.array([np.zeros_like(p), np.where(p > 1, first, 0.0), sum_s - last]))
    return index, (passes_s[0], passes_s[1]), (before_s[0], before_s[1])


def _one_forward_one_backward_s(stages: Stages, p: Floats, m: Floats, _: Floats) -> Floats:
    """Return the longest of the paths that the chapter names, of a 1F1B step."""
    c, middle, last = stages.transfer_s, stages.middle, stages.last
    all_s = sum(stages.sums_s(p)) + 2 * (p - 1) * c
    index, passes_s, before_s = _places(stages, p)
    dwelling_s = _dwelling_s(passes_s, index, before_s[0] + before_s[1] + 2 * index * c, all_s, p, m).max(axis=0)
    # As often through all stages as goes, and then the last few that are left: one stage more than hops.
    times = np.ceil((m + p - 1) / p) - 1
    hops = m - 2 - (times - 1) * p
    rest_s = np.where(hops == p - 1, all_s, last.both_s + hops * (middle.both_s + 2 * c))
    tail_s = np.where((times >= 1) & (hops >= 0) & (hops < p), times * all_s + rest_s, 0.0)
    on_channel_s = all_s + np.where(p > 1, (m - 1) * c, 0.0)
    return np.asarray(np.maximum(np.maximum(dwelling_s, tail_s), on_channel_s))


def _interleaved_s(stages: Stages, p: Floats, m: Floats, v: Floats) -> Floats:
    """Return the longest of three paths: those that dwell on the last device, the one before it, and the first.

    What the ends have more than others lies on the first and on the last chunk. Before all else the first device does
    p forwards of its first chunk, and behind all else p backwards; or one of them, and the wraps' transfers count.
    """
    c, chunks = stages.transfer_s, p * v
    f, b = stages.middle.forward_s / v, stages.middle.backward_s / v
    first = stages.first.forward_s - stages.middle.forward_s, stages.first.backward_s - stages.middle.backward_s
    last_s = stages.last.both_s - stages.middle.both_s
    edges = [np.maximum(extra + (chunks - 1) * c, p * extra + np.maximum(chunks - p - 1, 0.0) * c) for extra in first]
    base_s = m * stages.middle.both_s + (p - 1) * (f + b)
    at_last_s = base_s + m * last_s + edges[0] + edges[1]
    # The others wait for their first backward, which comes from the last device, or are busy until then.
    come_s = chunks * f + b + edges[0] + last_s + c
    done_s = np.minimum((v - 1) * p + 3, m * v) * f
    tail_s = (p - 2) * (b + c) + np.maximum(first[1], p * first[1])
    waited_s = np.maximum(come_s, (p - 2) * (f + c) + np.maximum(first[0], p * first[0]) + done_s)
    before_last_s = m * stages.middle.both_s + waited_s - done_s + tail_s
    done = np.minimum(2 * (p - 1) + (v - 1) * p + 1, m * v)  # forwards of the first device before its first backward
    of_first_chunk = np.floor(done / chunks) * p + np.minimum(done % chunks, p)
    done_s = done * f + of_first_chunk * first[0]
    waited_s = np.maximum(come_s + (p - 2) * (b + c), done_s)
    at_first_s = waited_s + m * stages.first.both_s - done_s
    return np.maximum(np.maximum(at_last_s, at_first_s), np.where(p > 2, before_last_s, 0.0))


def _zero_bubble_s(stages: Stages, p: Floats, m: Floats, _: Floats) -> Floats:
    """Return the longest of the paths of a ZB-H1 step through single devices.

    With the gradients of weights put off by as many micro-batches as the device has before it, ``max(m - p, 0)`` of
    them lie between the first backward and the last forward of any device.
    """
    c, weights_s = stages.transfer_s, stages.weights_s
    sum_s = sum(stages.sums_s(p))
    all_s = sum_s + 2 * (p - 1) * c
    index, (forward_s, backward_s), (forwards_before_s, backwards_before_s) = _places(stages, p)
    lead = p - index
    before_s = forwards_before_s + backwards_before_s + 2 * index * c
    path_s = 2 * all_s - before_s + (m - lead - 1) * (forward_s + backward_s)
    path_s = path_s + (np.maximum(m - p, 0.0) + 1) * weights_s
    path_s = np.where(m > lead, path_s, 0.0)
    # From its first backward on the device is busy to its end.
    start_s = sum_s - backwards_before_s + (p - 1 + lead - 1) * c
    busy_s = (m - 1) * backward_s + np.maximum(m - lead, 0.0) * forward_s + m * weights_s
    on_channel_s = all_s + weights_s + np.where(p > 1, (m - 1) * c, 0.0)
    return np.asarray(np.maximum(np.maximum(path_s, start_s + busy_s).max(axis=0), on_channel_s))


def _sizes(layouts: Layouts) -> tuple[Floats, Floats, Floats]:
    """Return devices of a pipeline, micro-batches and chunks, as they enter sums of seconds."""
    return (
        layouts.pipeline.astype(np.float64),
        layouts.num_microbatches.astype(np.float64),
        layouts.interleave.astype(np.float64),
    )
