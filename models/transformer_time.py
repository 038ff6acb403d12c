"""Seconds of a transformer's training step in many layouts at once, with its parts, which sum to the total.

**One micro-batch on one machine group.** See :mod:`planner.models.transformer_interval`.

**One step.** All devices of one stage of one replica are of one group. Replicas whose stages lie on the same groups and
which do as many micro-batches make a *class*; layers are cut into stages alike in all of them, since gradients add up.

- *Stage.* The seconds of its own layers, with experts and without, on its group; the first has the embedding besides,
  with an encoder of images where there is one, the last the head. A stage computes nothing while it sends, but for
  interleaved ones where the program overlaps that (``overlap_p2p_comm`` of Megatron-Core, on by default with chunks): a
  transfer then shows where it is longer than a chunk one way, and while the pipeline fills and empties, for which the
  program does not overlap it. Handing on takes ``send_s`` besides, of every chunk and each way: what keeps chunks
  from becoming ever smaller. Between two groups a device has its part of its machine's link, and the slower side
  counts.
- *Schedule.* See :mod:`planner.models.transformer_schedule`. What it takes beyond the work of the slowest stage is the
  part ``bubble``. Gradients of weights, which zero-bubble schedules put off, are half of a backward pass.
- *Replicas.* All data ranks of a stage communicate its gradients and weights: as if all stood on machines of one group
  whose links were no wider than those between groups; the slowest group counts.
- *End.* The longest class, and then the longest of what stages still communicate and of their optimiser's steps.

:class:`planner.models.transformer_step.Step` is the general case: 1F1B over any cut and any groups, ZeRO 0 and 1,
without virtual stages. :func:`iteration_times` is its reduction to layers that are dealt out evenly to one group
(:func:`planner.models.layouts.dealt_layers`): three stages stand for all, for the schedule, too, where those between
the ends are equal, by closed forms; of layers of several kinds those stand for all of which one is the busiest
(:func:`planner.models.layouts.busiest_stages`). It knows every schedule, ZeRO 2 and 3 and virtual stages. Tests hold
one against the other.

Leaves out stragglers, input, checkpoints, and the memory that a nearly full device is short of. Source: own composition
of fitted parts; bubbles of equal stages as in D. Narayanan et al., SC21, arXiv:2104.04473, section 2.2.

**A profile layer by layer**, for families that know layers only. In all it takes what :func:`iteration_times` says of
one device, so that every family computes as long as ``hybrid`` does with the same samples at a time. Blocks, embedding
and head take what :mod:`planner.models.compute` gives them; inside each, seconds are shared out by multiply-adds, so
that cuts inside a block, and when a gradient in it is ready, are estimates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import inf

import numpy as np

from planner.cost import Floats, Profile
from planner.dnn import Dnn
from planner.models.compute import Constants, DeviceRates, Software, Speeds, embedding_s, head_s, layer_seconds, move_s
from planner.models.layouts import (
    SCHEDULE_NAMES,
    BusyStages,
    EvenCut,
    Ints,
    Layouts,
    Schedule,
    busiest_stages,
    cut_of,
    dealt_layers,
    folded_layers,
    fullest_layers,
    layers_by_kind,
)
from planner.models.schedule import one_forward_one_backward_s, played_s
from planner.models.tiers import Tier
from planner.models.transformer_communication import replica_communication, replica_times
from planner.models.transformer_interval import (
    COMMUNICATING,
    FORWARD_OF_ENDS,
    INTERVAL_PARTS,
    LAYER_PARTS,
    LayerFigures,
    Pair,
    behind_schedule_s,
    encoder_s,
    interval_times,
    kind_times,
    layer_counts,
    layer_times,
    of_stages,
    optimizer_bytes,
    sum_of,
    whole_matrices_s,
)
from planner.models.transformer_schedule import Stages, lower_bound_s, order_name, step_s
from planner.transformer import Transformer

PARTS = (*LAYER_PARTS, "bubble", "pipeline", "data", "optimizer")

_SHARING = ("data", "order", "zero", "shard", "num_microbatches")
_REPLICATING = ("tensor", "context", "expert", "expert_tensor", "pipeline", *_SHARING)


def iteration_times(
    figures: LayerFigures, layouts: Layouts, *, is_exact: bool = True, chunk_layers: Sequence[int] | Ints | None = None
) -> Mapping[str, Floats]:
    """Return the seconds of one step of an even cut: every part of :data:`PARTS`, and ``total``, their sum.

    Parameters
    ----------
    figures, layouts
        What the layouts share, and n of them.
    is_exact
        Whether the schedule of virtual stages that differ is played; else its step is bounded from below.
    chunk_layers
        Layers of every virtual stage, in the order of the network, where they are not dealt out evenly: of all layouts
        or of each, shape (K,) or (K, n); all then have as many stages and chunks.

    Returns
    -------
    Arrays of shape (n,).
    """
    if layouts.is_folded.any():
        return _some_folded_times(figures, layouts, chunk_layers, is_exact=is_exact)
    return _straight_times(figures, layouts, chunk_layers, is_exact=is_exact)


def _straight_times(
    figures: LayerFigures, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None, *, is_exact: bool
) -> Mapping[str, Floats]:
    """Return the same of layouts whose stages do not turn."""
    transformer, rates, software = figures.transformer, figures.reached_rates, figures.software
    interval = interval_times(figures, layouts)
    number, stages, transfer = layouts.num_microbatches, layouts.pipeline, interval["transfer"]
    cut = cut_of(transformer.num_layers, layouts, chunk_layers)
    whole = {name: interval[name].sum(axis=0) for name in INTERVAL_PARTS}
    share = cut.most / transformer.num_layers
    inner = {name: whole[name] * share for name in LAYER_PARTS}
    times = stage_times(transformer, layouts, interval, chunk_layers)
    (ahead, both), ends = times["middle"], (times["first"], times["last"])
    busy = busiest_stages(transformer, layouts, chunk_layers) if len(transformer.kind_counts) > 1 else None
    if busy is None:
        parts = {name: number * seconds for name, seconds in inner.items()}
        # The busiest stage is an end where that is longer than one more transfer: the last output and the first error
        # go nowhere, so that an end sends once less.
        longer = np.maximum(ends[0][1], ends[1][1])
        is_end = (stages == 2) | (longer > transfer)
        more = np.where(stages > 1, np.where(is_end, longer, 0.0), ends[0][1] + ends[1][1])
        parts["compute"] = parts["compute"] + number * more
        parts["pipeline"] = number * np.where(stages > 1, 2.0 * layouts.interleave - is_end, 0.0) * transfer
    else:
        parts = _busiest_parts(transformer, layouts, interval, busy)
    extras = [(forward, end - forward) for forward, end in ends]
    stages_of = partial(
        Stages.of,
        layouts,
        ahead,
        both - ahead,
        first_extra_s=extras[0],
        last_extra_s=extras[1],
        weight_gradient_s=(inner["compute"] - whole["forward"] * share) / 2,
    )
    scheduled = step_s(stages_of(transfer_s=transfer, is_blocking=True), layouts)
    # Closed forms of zero-bubble schedules know no device that puts less off than others.
    is_closed = (
        cut.is_alike
        & ((layouts.schedule != Schedule.ZB_H1) | (cut.last_less == 0))
        & (layouts.schedule != Schedule.ZB_H2)
    )
    if busy is not None:
        is_closed = is_closed & busy.is_alike
    if transformer.encoder is not None and not transformer.trained.is_all:  # whose first chunk may be long one way
        is_closed = is_closed & (layouts.interleave == 1)
    if not is_exact and not is_closed.all():
        if busy is None:
            bound = lower_bound_s(stages_of(), layouts, cut, transfer)
        else:
            bound = _busiest_bound_s(transformer, layouts, interval, busy)
        scheduled = np.where(is_closed, scheduled, bound)
    elif len(uneven := np.flatnonzero(~np.broadcast_to(is_closed, len(layouts)))):
        few = {name: array[..., uneven] for name, array in interval.items()}
        scheduled[uneven] = _uneven_s(transformer, layouts.of(uneven), few, chunk_layers)
    filling = filling_s(transformer, layouts, interval, chunk_layers)
    scheduled = scheduled + (filling if is_exact else filling_transfers_s(layouts, interval))
    parts["bubble"] = np.maximum(scheduled - sum_of(layouts, parts.values()), 0.0)
    held = np.array([np.broadcast_arrays(cut.most - cut.first_less, cut.most, cut.most - cut.last_less)])
    if busy is not None:  # the last stage is the third again
        held = busy.layers[:, [0, min(1, len(busy.index) - 1), -1, *range(2, len(busy.index) - 1)]]
    is_each = chunk_layers is not None and np.ndim(chunk_layers) > 1
    parts["data"] = _replicas_s(figures, layouts, interval, held, is_each=is_each)
    fullest = fullest_layers(transformer, layouts, chunk_layers)
    moved = optimizer_bytes(transformer, software, layouts, *fullest)
    matrices_s = whole_matrices_s(figures, figures.reached_rates, layouts, fullest[0])
    parts["optimizer"] = (move_s(moved, rates) + matrices_s).max(axis=0)
    parts = {name: np.broadcast_to(parts[name], len(layouts)) for name in PARTS}
    return {**parts, "total": sum_of(layouts, parts.values())}


def filling_s(
    transformer: Transformer,
    layouts: Layouts,
    interval: Mapping[str, Floats],
    chunk_layers: Sequence[int] | Ints | None = None,
) -> Floats:
    """Return what overlapping leaves to see: nothing is beside what fills and empties a pipeline.

    Of the experts' exchange that is as many micro-batches as there are stages, both ways, and what a stage waits for
    the others meanwhile. Of layers of several kinds it is that of the mean layer. Of transfers it is all that the first
    micro-batch passes through all virtual stages, and the last one back: ``2 (p v - 1)`` of them, as
    :mod:`planner.models.transformer_schedule` has it of interleaved stages.

    Parameters
    ----------
    transformer, layouts, interval, chunk_layers
        As for :func:`stage_times`.
    """
    share = cut_of(transformer.num_layers, layouts, chunk_layers).most / transformer.num_layers
    waited = (layouts.pipeline - 1) / layouts.interleave  # for other stages to fill and to empty
    alone = np.minimum(layouts.num_microbatches, layouts.pipeline) + waited
    return np.asarray(alone * interval["hidden"].sum(axis=0) * share + filling_transfers_s(layouts, interval))


def filling_transfers_s(layouts: Layouts, interval: Mapping[str, Floats]) -> Floats:
    """Return what transfers beside computing take while a pipeline fills and empties.

    Parameters
    ----------
    layouts, interval
        As for :func:`stage_times`.
    """
    return np.asarray(2 * (layouts.pipeline * layouts.interleave - 1) * interval["transfer_hidden"])


def _ends_of(layouts: Layouts, interval: Mapping[str, Floats], busy: BusyStages) -> tuple[Floats, Ints]:
    """Return what embedding and head take on each of some stages, and how often these send; for a micro-batch."""
    is_first, is_last = busy.index == 0, busy.index == layouts.pipeline - 1
    ends = is_first * interval["embedding"] + is_last * interval["head"]
    return ends, np.where(layouts.pipeline > 1, 2 * layouts.interleave - (is_first | is_last), 0)


def _busiest_parts(
    transformer: Transformer, layouts: Layouts, interval: Mapping[str, Floats], busy: BusyStages
) -> dict[str, Floats]:
    """Return the parts of what the busiest stage computes and sends in a step."""
    ends, sends = _ends_of(layouts, interval, busy)
    layer_s, _ = kind_times(transformer, interval)
    number, transfer = layouts.num_microbatches, interval["transfer"]
    most = np.argmax(of_stages(busy.layers, layer_s) + ends + sends * transfer, axis=0)[None]
    share = np.take_along_axis(busy.layers, most[None], axis=1)[:, 0] / layer_counts(transformer)
    parts = {name: number * (share * interval[name]).sum(axis=0) for name in LAYER_PARTS}
    ends, sends = (np.take_along_axis(one, most, axis=0)[0] for one in (ends, sends))
    parts["compute"] = parts["compute"] + number * ends
    return {**parts, "pipeline": number * sends * transfer}


def _busiest_bound_s(
    transformer: Transformer, layouts: Layouts, interval: Mapping[str, Floats], busy: BusyStages
) -> Floats:
    """Return seconds that no schedule goes below: as :func:`planner.models.transformer_schedule.lower_bound_s` says."""
    ends, sends = _ends_of(layouts, interval, busy)
    layer_s, ahead_s = kind_times(transformer, interval)
    apart_s = (interval["compute"] - interval["forward"]) / 2 / layer_counts(transformer)
    apart_s = apart_s * layouts.puts_off
    number, sent_s, is_behind = layouts.num_microbatches, busy.index * interval["transfer"], busy.index > 0
    embedding, forward = interval["embedding"], interval["embedding_forward"]
    head_s = np.where(is_behind, of_stages(busy.before, ahead_s) + forward + sent_s, 0.0)
    passed = of_stages(busy.before, layer_s - ahead_s - apart_s)
    tail_s = np.where(is_behind, passed + embedding - forward + sent_s, 0.0)
    own_s = number * (of_stages(busy.layers, layer_s - apart_s) + ends)
    own_s = own_s + np.maximum(number * sends - is_behind, 0) * interval["transfer"]
    weights_s = number * of_stages(busy.layers, apart_s)
    return np.asarray((head_s + own_s + np.maximum(tail_s, weights_s)).max(axis=0))


def chunk_passes_s(
    transformer: Transformer, interval: Mapping[str, Floats], schedule: Schedule, layers: Ints
) -> tuple[Floats, Floats, Floats]:
    """Return the seconds of virtual stages' forwards and backwards, and of weights' gradients that are put off.

    Parameters
    ----------
    transformer, interval
        As for :func:`stage_times`, of n layouts or of one.
    schedule
        Of all of them.
    layers
        Of every virtual stage, shape (K, n), or (K, 1) of one cut.

    Returns
    -------
    Arrays of shape (K, n), of one micro-batch; with what a stage sends, which is nothing at the turn of a V.
    """
    layer_s, ahead_s = kind_times(transformer, interval)
    apart_s = (interval["compute"] - interval["forward"]) / 2 / layer_counts(transformer) * (schedule >= Schedule.ZB_H1)
    held = layers_by_kind(transformer, layers)
    forward, both, weights = (of_stages(held, one) for one in (ahead_s, layer_s, apart_s))
    backward = both - forward - weights
    for row, name in ((0, "embedding"), (-1, "head")):
        forward[row] += interval[f"{name}_forward"]
        backward[row] += interval[name] - interval[f"{name}_forward"]
    number, turns = len(layers), Schedule.ZB_V <= schedule != Schedule.DUALPIPE
    sent = interval["transfer"] * (np.arange(1, number) != (number // 2 if turns else 0))[:, None]
    forward[:-1] += sent
    backward[1:] += sent
    return forward, backward, weights


def _uneven_s(
    transformer: Transformer,
    layouts: Layouts,
    interval: Mapping[str, Floats],
    chunk_layers: Sequence[int] | Ints | None,
) -> Floats:
    """Return the seconds of the schedule of cuts whose virtual stages differ, from all of them; once for each alike."""
    given = None if chunk_layers is None else np.asarray(chunk_layers, dtype=np.int64)
    chosen = back = np.arange(len(layouts))
    if given is None or given.ndim == 1:
        names = (*COMMUNICATING, "recompute_layers", "interleave", "schedule", "num_microbatches")
        chosen, back = layouts.distinct(names)
    layouts, interval = layouts.of(chosen), {name: array[..., chosen] for name, array in interval.items()}
    found = np.empty(len(layouts))
    cuts, of_cut = layouts.distinct(("pipeline", "interleave", "schedule"))
    for index, at in enumerate(cuts):
        some, number = np.flatnonzero(of_cut == index), layouts.num_microbatches
        p, v, schedule = (int(getattr(layouts, name)[at]) for name in ("pipeline", "interleave", "schedule"))
        layers = (dealt_layers(transformer.num_layers, p, v) if given is None else given).reshape(p * v, -1)
        few = {name: array[..., some] for name, array in interval.items()}
        forward, backward, weights = chunk_passes_s(transformer, few, Schedule(schedule), layers)
        if schedule == Schedule.GPIPE:
            found[some] = sum(one.sum(axis=0) + (number[some] - 1) * one.max(axis=0) for one in (forward, backward))
        elif schedule == Schedule.ONE_F_ONE_B and v == 1:
            found[some] = one_forward_one_backward_s(forward, backward, layouts.pipeline[some], number[some])
        else:
            for count in np.unique(number[some]).tolist():
                own = number[some] == count
                found[some[own]] = played_s(
                    forward[:, own],
                    backward[:, own],
                    weights[:, own],
                    schedule=order_name(Schedule(schedule), v),
                    num_devices=p,
                    num_microbatches=count,
                )
    return found[back]


def _some_folded_times(
    figures: LayerFigures, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None, *, is_exact: bool
) -> Mapping[str, Floats]:
    """Return the seconds of a step by part, of layouts of which some turn at the last device."""
    folded = np.broadcast_to(layouts.is_folded, len(layouts))
    found: dict[str, Floats] = {}
    is_each = chunk_layers is not None and np.ndim(chunk_layers) > 1
    cuts, of_cut = layouts.distinct(("pipeline",))
    kinds = [~folded, *(folded & (of_cut == index) for index in range(len(cuts)))]
    for index, mask in enumerate(kinds):
        if not mask.any():
            continue
        some = np.flatnonzero(mask)
        given = np.asarray(chunk_layers)[:, some] if is_each else chunk_layers
        times = (_folded_times if index else _straight_times)(figures, layouts.of(some), given, is_exact=is_exact)
        for name, seconds in times.items():
            found.setdefault(name, np.empty(len(layouts)))[some] = seconds
    return found


def _folded_times(
    figures: LayerFigures, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None, *, is_exact: bool
) -> Mapping[str, Floats]:
    """Return the same of layouts of as many stages, all of which turn at the last device.

    Its two virtual stages follow one another, so that nothing is sent between them; of DualPipe they stand on two
    devices. Each virtual stage is a task of the order that is played. The bound is what the busiest device computes.
    """
    transformer, number, p = figures.transformer, layouts.num_microbatches, int(layouts.pipeline[0])
    interval, counts = interval_times(figures, layouts), layer_counts(transformer)
    given = folded_layers(transformer.num_layers, p) if chunk_layers is None else np.asarray(chunk_layers)
    layers = layers_by_kind(transformer, given.reshape(2 * p, -1))
    layer_s, ahead_s = kind_times(transformer, interval)
    apart_s = (interval["compute"] - interval["forward"]) / 2 / counts
    forward, both, weights = (of_stages(layers, one) for one in (ahead_s, layer_s, apart_s))
    is_sent = np.arange(2 * p - 1)[:, None] != np.where(layouts.schedule == Schedule.DUALPIPE, -1, p - 1)
    sent, ends = np.zeros((2, 2 * p, len(layouts))), np.zeros((2 * p, len(layouts)))
    sent[0, :-1] = sent[1, 1:] = is_sent * interval["transfer"]
    backward = both - forward - weights
    for row, name in ((0, "embedding"), (-1, "head")):
        ahead = interval[f"{name}_forward"]
        ends[row] = interval[name]
        forward[row], backward[row] = forward[row] + ahead, backward[row] + interval[name] - ahead

    def held(table: Floats) -> Floats:
        return table[:p] + table[: p - 1 : -1]

    sends = held(sent.sum(axis=0))
    most = np.argmax(held(both + ends) + sends, axis=0)
    on_device = np.broadcast_to(layers, (*layers.shape[:2], len(layouts)))
    on_device = on_device[:, :p] + on_device[:, : p - 1 : -1]
    columns = np.arange(len(layouts))
    share = on_device[:, most, columns] / counts
    parts = {name: number * (share * interval[name]).sum(axis=0) for name in LAYER_PARTS}
    parts["compute"] = parts["compute"] + number * held(ends)[most, columns]
    parts["pipeline"] = number * sends[most, columns]
    busy_s = sum_of(layouts, parts.values())
    scheduled = busy_s
    if is_exact:
        scheduled = _folded_s(layouts, (forward + sent[0], backward + sent[1], weights))
        scheduled = scheduled + filling_s(transformer, layouts, interval, chunk_layers)
    parts["bubble"] = np.maximum(scheduled - busy_s, 0.0)
    parts["data"] = _replicas_s(figures, layouts, interval, on_device, is_each=chunk_layers is not None)
    has_end = np.arange(p)[:, None] == 0
    moved = optimizer_bytes(transformer, figures.software, layouts, on_device, has_end)
    matrices_s = whole_matrices_s(figures, figures.reached_rates, layouts, on_device)
    parts["optimizer"] = (move_s(moved, figures.reached_rates) + matrices_s).max(axis=0)
    parts = {name: np.broadcast_to(parts[name], len(layouts)) for name in PARTS}
    return {**parts, "total": sum_of(layouts, parts.values())}


def _folded_s(layouts: Layouts, passes_s: tuple[Floats, Floats, Floats]) -> Floats:
    """Return the seconds of schedules in a V, from those of virtual stages; once for each alike."""
    known, back = np.unique(
        np.concatenate([*passes_s, layouts.schedule[None], layouts.num_microbatches[None]]), axis=1, return_inverse=True
    )
    found, p = np.empty(known.shape[1]), int(layouts.pipeline[0])
    schedules, numbers = known[-2].astype(np.int64), known[-1].astype(np.int64)
    schedules = np.where(schedules == Schedule.DUALPIPE, Schedule.DUALPIPE_V, schedules)
    orders, of_order = np.unique(schedules, return_inverse=True)
    for index, schedule in enumerate(orders.tolist()):
        for count in np.unique(numbers[of_order == index]).tolist():
            own = np.flatnonzero((of_order == index) & (numbers == count))
            found[own] = played_s(
                *(known[row * 2 * p : (row + 1) * 2 * p, own] for row in range(3)),
                schedule=SCHEDULE_NAMES[schedule],
                num_devices=p,
                num_microbatches=count,
            )
    return found[back]


def _replicas_s(
    figures: LayerFigures, layouts: Layouts, interval: Mapping[str, Floats], layers: Ints, *, is_each: bool
) -> Floats:
    """Return what nothing hides of reductions and gathers, of the stage where that is most.

    ``layers``: of the first stage, one between, the last, and others between, by kind: shape (kinds, r, n);
    ``is_each``: whether equal layouts may have unlike ones.
    """
    chosen = back = np.arange(len(layouts))
    if not is_each:
        chosen, back = layouts.distinct((*_REPLICATING, *(["interleave"] if len(layers) > 1 else [])))
    few, counts = layouts.of(chosen), layer_counts(figures.transformer)
    groups, layers = figures.groups_of(few), np.broadcast_to(layers, (*layers.shape[:2], len(layouts)))
    is_first = (np.arange(layers.shape[1]) == 0)[:, None]
    rows = np.where(few.pipeline > 1, layers[..., chosen], counts[:, None] * is_first)
    three = replace(few, pipeline=np.where(few.pipeline > 1, 3, 1))  # they stand for all
    *spread, tied = replica_communication(figures.transformer, three, figures.reduction, layers=rows)
    times = replica_times(spread, groups).values()
    # A tied embedding is reduced between the two ends after the last micro-batch: alone, nothing runs beside it.
    tied_s = np.broadcast_to(replica_times([tied], groups)["tied"][0], len(few))[back]
    reduced, gathered = (sum_of(few, (one[way] for one in times))[:, back] for way in (0, 1))
    layer_s, _ = kind_times(figures.transformer, interval)
    forward = (layers * interval["forward"][:, None] / counts[:, None]).sum(axis=0)
    behind, ahead = behind_schedule_s(figures, layouts, (reduced, gathered), forward, of_stages(layers, layer_s))
    return np.asarray(tied_s + (behind + ahead).max(axis=0))


def stage_times(
    transformer: Transformer,
    layouts: Layouts,
    interval: Mapping[str, Floats],
    chunk_layers: Sequence[int] | Ints | None = None,
) -> Mapping[str, Pair]:
    """Return the seconds of a micro-batch on one stage of an even cut, forward and both ways, sending left out.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    interval
        Of :func:`interval_times`.
    chunk_layers
        As for :func:`iteration_times`.

    Returns
    -------
    ``middle``: of the fullest stage, without embedding and head; ``first`` and ``last``: how much longer these take,
    less than 0 where they have a layer less. All as if each layer took the mean of all.
    """
    both, ahead = layer_times(transformer, interval)
    ends = ((interval[f"{name}_forward"], interval[name]) for name in ("embedding", "head"))
    return cut_times(cut_of(transformer.num_layers, layouts, chunk_layers), (ahead, both), *ends)


def cut_times(cut: EvenCut, layer_s: Pair, embedding_s: Pair, head_s: Pair) -> Mapping[str, Pair]:
    """Return the same from the seconds of a layer and of the ends, forward and both ways.

    Parameters
    ----------
    cut
        How many layers each device has.
    layer_s, embedding_s, head_s
        Of a micro-batch, shape (n,).
    """

    def longer(end_s: Pair, less: Ints) -> Pair:
        return end_s[0] - less * layer_s[0], end_s[1] - less * layer_s[1]

    return {
        "middle": (cut.most * layer_s[0], cut.most * layer_s[1]),
        "first": longer(embedding_s, cut.first_less),
        "last": longer(head_s, cut.last_less),
    }


# -- a profile layer by layer -----------------------------------------------------------------------------------------

_MOST_TOKENS = 32768  # that pass together: more make matrix multiplications no faster that are worth telling apart
_ALONE = (Tier(size=1, bandwidth_bytes_per_s=inf),)


@lru_cache(maxsize=64)  # a purchase asks for that of every device again and again
def transformer_profile(
    dnn: Dnn, *, rates: DeviceRates, software: Software, constants: Constants, update_s: float | None = None
) -> Profile:
    """Return the seconds of every layer, by the samples that pass the network together.

    Parameters
    ----------
    dnn
        A transformer of the zoo.
    rates, software, constants
        As for :func:`iteration_times`.
    update_s
        Of the optimiser's step; None: as the program moves its bytes.

    Raises
    ------
    ValueError
        If the network is not known as a transformer.
    """
    network, repeats = dnn.transformer, dnn.repeats
    if network is None:
        raise ValueError(f"{dnn.name} is not known as a transformer")
    many = max(1, _MOST_TOKENS // network.sequence_length)
    together = [2**power for power in range(many.bit_length())]
    layouts = replace(Layouts.one(), microbatch=np.array(together, dtype=np.int64))
    figures = LayerFigures(transformer=network, tiers=_ALONE, rates=rates, software=software, constants=constants)
    speeds = Speeds(figures.reached_rates, software, constants)
    forward_s, backward_s = np.zeros((2, len(together), len(dnn.layers)))

    def share_out(layers: slice, ahead_s: Floats, back_s: Floats) -> None:
        """Add the seconds of some layers by their multiply-adds; all to the last one where none has any."""
        work = np.array([one.num_multiply_adds for one in dnn.layers[layers]], dtype=float)
        if not work.any():
            work[-1] = 1.0
        forward_s[:, layers] += ahead_s[:, None] * (work / work.sum())
        backward_s[:, layers] += back_s[:, None] * (work / work.sum())

    of_kind = {kind: layer_seconds(network, kind, layouts, speeds) for kind in {one.kind: None for one in repeats}}
    for one in repeats:
        layer = of_kind[one.kind]
        end = one.first + one.num_layers * one.count
        for start in range(one.first, end, one.num_layers):
            share_out(slice(start, start + one.num_layers), layer.forward_s, layer.backward_s)
    last = repeats[-1].first + repeats[-1].num_layers * repeats[-1].count
    entry_s = embedding_s(network, layouts, speeds)
    if network.encoder is not None:
        entry_s = entry_s + encoder_s(figures, network.encoder, layouts, figures.groups_of(layouts))[0]
    for at, both_s in (
        (slice(0, repeats[0].first), entry_s),
        (slice(last, len(dnn.layers)), head_s(network, layouts, speeds)),
    ):
        if at.start < at.stop:
            ahead = FORWARD_OF_ENDS["trained"]  # families that read profiles train everything
            share_out(at, both_s * ahead, both_s * (1 - ahead))
    parts = iteration_times(figures, layouts)
    # What launching and adding up gradients take besides:
    scale = ((parts["compute"] + parts["launch"]) / (forward_s + backward_s).sum(axis=1))[:, None]
    return Profile.of_passes(
        together,
        forward_s * scale,
        backward_s * scale,
        update_s=float(parts["optimizer"][0]) if update_s is None else update_s,
        origin=f"fitted rooflines of {rates.name}",
    )
