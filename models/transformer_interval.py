"""Seconds of one micro-batch of a transformer on one machine group, in many layouts at once, and of what follows it.

:func:`interval_times` gives what all layers compute (products, attention and memory: :mod:`planner.models.compute`),
compute again, communicate (tensor, context and expert groups: :mod:`planner.models.transformer_communication`) and wait
for kernels to be launched, and what embedding, head and a transfer to the next stage take. Communication is exposed
unless a layout overlaps it; then the longer of the two counts, and a fitted share of the shorter, their contention for
the device's memory and multiprocessors.

Behind the schedule stand what nothing hides of replicas' communication, and the optimiser's step. Of these
:mod:`planner.models.transformer_time` makes the step of an even cut on one group, and
:mod:`planner.models.transformer_step` that of any cut on any groups. Source: own composition, whose shares are fitted
to measured steps (docs/accuracy_transformers.md); equations of the parts are cited in the chapters that have them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf, prod

import numpy as np

from planner.cost import Floats
from planner.models.compute import (
    Constants,
    DeviceRates,
    LayerSeconds,
    Software,
    Speeds,
    embedding_s,
    head_s,
    layer_seconds,
    move_s,
)
from planner.models.known import Known
from planner.models.layouts import ANY_CONTEXT_METHOD, Bools, ContextMethod, Ints, Layouts, Recompute, Schedule
from planner.models.operators import TransformerOperator
from planner.models.optimizers import matrices_of
from planner.models.parameters import encoder_layouts, trained_elements, trained_ends
from planner.models.roofline import longer_of
from planner.models.tiers import Group, Spread, Tier, groups_of, operation_s
from planner.models.transformer_communication import (
    EXPOSED_CONTEXT,
    CommunicationTimes,
    Reduction,
    communication_times,
    context_axes,
    context_communication,
    first_stage_communication,
    has_heads,
    last_stage_communication,
    layer_communication,
    pipeline_communication,
)
from planner.trained import Learning
from planner.transformer import KINDS, LayerKind, Transformer

LAYER_PARTS = ("compute", "recompute", "tensor", "expert", "context", "launch")  # of what a device does for its layers
# Of compute, what the forward pass takes; what overlapped experts hide:
INTERVAL_PARTS = (*LAYER_PARTS, "forward", "hidden")
_ENDS = ("embedding", "embedding_forward", "head", "head_forward")
_HANDED = ("sent", "gathered")  # from one stage to the next
_COMPUTING = ("tensor", "context", "expert", "expert_tensor", "microbatch", "sequence_parallel")
_RECOMPUTING = ("recompute", "recompute_modules")
COMMUNICATING = (
    *(*_COMPUTING, "pipeline", "data", *_RECOMPUTING),
    *("overlap_tensor", "overlap_expert", "order", "context_method"),
)
# Most devices that NVLink joins of which DeepEP has kernels between machines (``NUM_MAX_NVL_PEERS``): in larger domains
# HybridEP sends, which hands on as fast as links inside go.
_DEEPEP_PEERS = 8
_LAUNCH_SHARPNESS = 3.0  # a layer's kernels differ: while some fill the device, others wait for the host
# Where experts have kernels of their own, the host waits in their layer for their numbers of tokens and cannot launch
# ahead: of 3, 2.5, 2, 1.5 and 1 what networks and containers left out tell.
_WAITING_SHARPNESS = 2.5
# Of what embedding and head compute, what is forward: of frozen ones no product gives a gradient of weights.
FORWARD_OF_ENDS: Mapping[Learning, float] = {"trained": 1 / 3, "frozen": 1 / 2, "front": 1.0}
# Launching a layer's kernels: forward once, and backward as often for each gradient that its products give.
_LAUNCHES: Mapping[Learning, float] = {"trained": 3.0, "frozen": 2.0, "front": 1.0}
Pair = tuple[Floats, Floats]  # forward, and both ways


@dataclass(frozen=True, kw_only=True)
class LayerFigures:
    """What the seconds of layers rest on beside their layouts."""

    transformer: Transformer  # the network
    # of the cluster, from the inside outwards, with the bandwidths that links are sold by; the fitted shares and start-
    # up are put to them here
    tiers: tuple[Tier, ...]
    # rates, software, constants: of device and program, and of all
    rates: DeviceRates
    software: Software
    constants: Constants
    # tokens of the fullest rank's experts, over the mean; >= 1. All ranks wait for the fullest
    expert_imbalance: float = 1.0

    @cached_property
    def reached_tiers(self) -> tuple[Tier, ...]:
        """The tiers with the bandwidths that collectives reach."""
        return reached_tiers(self.tiers, self.constants)

    @cached_property
    def reached_rates(self) -> DeviceRates:
        """What the device reaches under the program."""
        return self.rates.under(self.software)

    @cached_property
    def num_inner_tiers(self) -> int:
        """How many tiers, from the inside, are as fast as the innermost one: NVLink's of machines, and of trays."""
        inside, *outside = self.tiers
        size = inside.size
        for index, tier in enumerate(outside, start=1):
            if size == 1 or tier.unit_bytes_per_s / size < inside.bandwidth_bytes_per_s:
                return index
            size *= tier.size
        return len(self.tiers)

    @cached_property
    def exchanging_tiers(self) -> tuple[Tier, ...]:
        """The tiers with the bandwidths that experts' all-to-alls reach: at most so much a device."""
        constants, number = self.constants, self.num_inner_tiers
        found = list(reached_tiers(self.tiers, replace(constants, outside_efficiency=constants.exchange_efficiency)))
        exchanged = self.software.exchanged_bytes_per_s if self.software.sends_once else inf
        found[:number] = [
            replace(tier, bandwidth_bytes_per_s=min(tier.bandwidth_bytes_per_s, exchanged))
            for tier in self.reached_tiers[:number]
        ]
        if number < len(found):
            size = prod(tier.size for tier in self.tiers[:number])
            most = constants.exchange_bytes_per_s * size / found[number].num_rails
            least = min(found[number].bandwidth_bytes_per_s, most)
            found[number] = replace(found[number], bandwidth_bytes_per_s=least)
        return tuple(found)

    @cached_property
    def spread(self) -> Spread | None:
        """How a token travels to its experts where it goes once to several in one place."""
        experts, software = self.transformer.experts, self.software
        if experts is None or not software.sends_once:
            return None
        size = prod(tier.size for tier in self.tiers[: self.num_inner_tiers])
        return Spread(
            copies=experts.top_k,
            parts=experts.groups,
            most_parts=experts.top_groups,
            handed_bytes_per_s=software.handed_bytes_per_s if size <= _DEEPEP_PEERS else inf,
            handed_from=self.num_inner_tiers,
        )

    @cached_property
    def most_data(self) -> int:
        """Data ranks of which any more change nothing of a micro-batch: one more than devices share an inner tier.

        What lies outside of so many ranks has a member in each unit of those tiers, and the devices are more than one
        of them. None where a tier says what reaches units that lie several apart.
        """
        if any(tier.by_stride for tier in self.tiers):
            return np.iinfo(np.int64).max
        return prod(tier.size for tier in self.tiers[:-1]) + 1

    @cached_property
    def known_intervals(self) -> Known:
        """What is known of micro-batches with these figures, whoever asks for them."""
        return _known_intervals(self)

    def groups_of(self, layouts: Layouts) -> Mapping[str, Group]:
        """Return all groups of ranks of some layouts, by name.

        Parameters
        ----------
        layouts
            N of them.
        """
        more, apart = context_axes(self.transformer, layouts), {"expert": self.exchanging_tiers}
        tiers, summed = self.summed(self.reached_tiers)
        return groups_of(tiers, layouts, more, {**apart, **summed})

    def summed(self, tiers: tuple[Tier, ...]) -> tuple[tuple[Tier, ...], Mapping[str, tuple[Tier, ...]]]:
        """Return tiers as most groups have them, and by name as those have whose sums switches may add up."""
        names = self.software.summed_groups
        if names is None or not any(tier.reduces for tier in tiers):
            return tiers, {}
        return tuple(replace(tier, reduces=False) for tier in tiers), dict.fromkeys(names, tiers)

    @property
    def reduction(self) -> Reduction:
        """How the program adds up gradients."""
        software = self.software
        return Reduction(
            gradient_bytes=software.gradient_bytes,
            weight_bytes=software.weight_bytes,
            bucket_bytes=software.bucket_bytes,
            reduces_every_microbatch=software.reduces_every_microbatch,
            reduces_copies_once=software.reduces_copies_once,
            shards_gradients=software.shards_gradients,
            tied_gradient_bytes=software.tied_gradient_bytes,
        )

    def beside(self, computing: Floats, communication: Floats, contention: Floats | None = None) -> Floats:
        """Return what communication adds to computing that it runs beside: what is longer, and some of the shorter.

        Parameters
        ----------
        computing, communication
            Seconds of each by itself.
        contention
            Share of the shorter that is not hidden, if another one than of most communication.
        """
        share = self.constants.contention if contention is None else contention
        both = np.maximum(computing, communication) + share * np.minimum(computing, communication)
        return np.asarray(both - computing)

    def exposed_s(self, compute: Floats, times: CommunicationTimes) -> Floats:
        """Return the seconds of communication, those that backward computes beside only as far as they show.

        Parameters
        ----------
        compute, times
            Seconds of computing, both ways; of communication.
        """
        return times.total_s + self.beside(compute / 2, times.hidden_backward_s)


@lru_cache(maxsize=16)
def _known_intervals(figures: LayerFigures) -> Known:  # a key of the cache
    """Return what is known of micro-batches with some figures."""
    return Known()


def reached_tiers(tiers: Sequence[Tier], constants: Constants) -> tuple[Tier, ...]:
    """Return tiers with the bandwidths that collectives reach, and their start-up for each hop.

    Parameters
    ----------
    tiers, constants
        With the bandwidths that links are sold by; of all layouts.
    """
    return tuple(
        replace(
            tier,
            bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s
            * (constants.outside_efficiency if index else constants.inside_efficiency),
            latency_s=tier.latency_s + constants.hop_s,
        )
        for index, tier in enumerate(tiers)
    )


def sum_of(layouts: Layouts, arrays: Iterable[Floats]) -> Floats:
    """Return the sum of some arrays, one element a layout.

    Parameters
    ----------
    layouts, arrays
        The layouts; of shape (n,) or (1,).
    """
    return sum(arrays, start=np.zeros(len(layouts)))


def of_stages(layers: Ints, by_kind: Floats) -> Floats:
    """Return what the layers of stages take together, shape (p, n): of (kinds, p, n), and of a layer (kinds, n).

    Parameters
    ----------
    layers, by_kind
        How many of each kind a stage has; what one takes.
    """
    return np.asarray((layers * by_kind[:, None]).sum(axis=0))


def layer_counts(transformer: Transformer) -> Ints:
    """Return the layers of each kind, shape (kinds, 1).

    Parameters
    ----------
    transformer
        The network.
    """
    return np.array([*transformer.kind_counts.values()])[:, None]


def mean_layer(transformer: Transformer, by_kind: Floats) -> Floats:
    """Return the mean over all layers of what a layer of each kind takes.

    Parameters
    ----------
    transformer, by_kind
        The network; of shape (kinds, n), as :attr:`planner.transformer.Transformer.kind_counts` lists kinds.
    """
    return np.asarray((layer_counts(transformer) / transformer.num_layers * by_kind).sum(axis=0))


def interval_times(figures: LayerFigures, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the seconds of one micro-batch through all layers, by part, and of what is no layer.

    Interleaved stages send and receive beside the next chunk, where the program does (Megatron-Core: on by default,
    ``--no-overlap-p2p-communication``), so that a device waits for what is longer than a chunk one way. Handing on
    takes a while in any case: kernels are launched and waited for, whatever is sent.

    Parameters
    ----------
    figures, layouts
        What the layouts share, and n of them.

    Returns
    -------
    :data:`LAYER_PARTS`, and ``forward`` (of ``compute``, what the forward pass takes), of all layers of each kind,
    shape (kinds, n), as :attr:`planner.transformer.Transformer.kind_counts` lists them; besides ``embedding`` and
    ``head``, both ways and with their communication, ``embedding_forward`` and ``head_forward`` of them, and
    ``transfer``, what a device waits for one virtual stage's passage to the next, and ``transfer_hidden``, what of it
    is beside its computing, shape (n,).
    """
    found = _recomputed_intervals(figures, layouts)
    transfer_s, handing_s = found["transfer"], figures.constants.send_s * (layouts.pipeline > 1)
    if not (figures.software.overlaps_transfers and np.any(layouts.interleave > 1)):
        return {**found, "transfer": transfer_s + handing_s, "transfer_hidden": np.zeros(transfer_s.shape)}
    whole_s = sum_of(layouts, (found[name].sum(axis=0) for name in LAYER_PARTS))
    chunk_s = whole_s / (2 * layouts.pipeline * layouts.interleave)
    is_beside = (layouts.interleave > 1) & (layouts.schedule == Schedule.ONE_F_ONE_B)
    shown_s = np.where(is_beside, np.maximum(transfer_s - chunk_s, 0.0), transfer_s)
    return {**found, "transfer": shown_s + handing_s, "transfer_hidden": transfer_s - shown_s}


def _recomputed_intervals(figures: LayerFigures, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the same; where some layers of a stage are computed again, in proportion of layers with and without."""
    found = _alike_intervals(figures, layouts)
    some = np.flatnonzero(np.broadcast_to(layouts.recompute_layers, len(layouts)))
    if not len(some):
        return found
    few = layouts.of(some)
    none = np.full(len(some), int(Recompute.NONE))
    without = _alike_intervals(figures, replace(few, recompute=none))
    share = few.recomputed_share(-(-figures.transformer.num_layers // few.pipeline))
    mixed = {name: array.copy() for name, array in found.items()}
    for name, array in mixed.items():
        if figures.transformer.encoder is not None and name.startswith("embedding"):
            continue  # all of an encoder is computed again
        array[..., some] = share * array[..., some] + (1 - share) * without[name]
    return mixed


def _alike_intervals(figures: LayerFigures, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the same of layers that are all computed again or none, once for each combination of few decisions."""
    layouts = replace(layouts, data=np.minimum(layouts.data, figures.most_data))
    interval_of, to_interval = layouts.distinct(COMMUNICATING)
    few, kinds = layouts.of(interval_of), len(figures.transformer.kind_counts)

    def rows_of(own: LayerFigures, some: Layouts) -> Floats:
        times = _group_intervals(own, some, own.groups_of(some))
        return np.concatenate([*(times[name] for name in INTERVAL_PARTS), [times[name] for name in (*_ENDS, *_HANDED)]])

    def worked_out(places: Ints) -> Floats:
        some = few.of(places)
        found, cut = rows_of(figures, some), np.flatnonzero(some.tensor > 1)
        if figures.software.sends_each_of_tensor and len(cut):
            each = replace(figures, software=replace(figures.software, sends_once=False))
            found[:, cut] = rows_of(each, some.of(cut))
        return found

    arrays = few.arrays()
    rows = figures.known_intervals.of([arrays[name] for name in COMMUNICATING], worked_out)
    parts = {name: rows[index * kinds : (index + 1) * kinds] for index, name in enumerate(INTERVAL_PARTS)}
    parts |= dict(zip((*_ENDS, *_HANDED), rows[len(parts) * kinds :], strict=True))
    counts = (one.forward for one in pipeline_communication(figures.transformer, few))
    handed_s = sum_of(few, (number * parts.pop(name) for name, number in zip(_HANDED, counts, strict=True)))
    parts["transfer"] = handed_s / few.interleave
    return {name: array[..., to_interval] for name, array in parts.items()}


def _group_intervals(figures: LayerFigures, layouts: Layouts, groups: Mapping[str, Group]) -> dict[str, Floats]:
    """Return the same of layouts whose groups of ranks are known; of a transfer the seconds of its operations."""
    network, constants, software = figures.transformer, figures.constants, figures.software
    layer_of, to_layer = layouts.distinct(_COMPUTING)
    few = layouts.of(layer_of)
    sets = np.unique(np.where(layouts.recompute == Recompute.SELECTIVE, layouts.recompute_modules, 0))
    module_sets = tuple(int(one) for one in sets if one)
    shape = (len(network.kind_counts), len(layouts))
    interval: dict[str, Floats] = {name: np.zeros(shape) for name in INTERVAL_PARTS}
    by_kind, embedding, head = _computing_s(figures, few, module_sets)
    for index, (kind, count) in enumerate(network.kind_counts.items()):
        layer = by_kind[index]
        layer = LayerSeconds(
            **{name: getattr(layer, name)[..., to_layer] for name in LayerSeconds.__dataclass_fields__}
        )
        for name, seconds in _layer_parts(figures, layouts, kind, layer, groups, module_sets).items():
            interval[name][index] = count * seconds
    for name, one in zip(_HANDED, pipeline_communication(network, layouts), strict=True):
        interval[name] = np.zeros(len(layouts))
        if one.forward.any():
            interval[name] = operation_s(one.operation, groups[one.group], one.size_bytes)
    # The ends' tensor-parallel communication is exposed, but for the gather beside the head's backward product.
    if network.projector is None:
        head = head + constants.head_floor_ratio * software.launch_s * software.launch_ratio
    for name, seconds, communicated in (
        ("embedding", embedding[to_layer], first_stage_communication(network, layouts)),
        ("head", head[to_layer], last_stage_communication(network, layouts)),
    ):
        (times,) = communication_times(communicated, groups).values()
        interval[name] = seconds + figures.exposed_s(seconds, times)
        ahead = FORWARD_OF_ENDS[network.learning_of(name)]
        interval[f"{name}_forward"] = ahead * seconds + times.forward_s
    if network.encoder is not None:
        both_s, forward_s = encoder_s(figures, network.encoder, layouts, groups)
        interval["embedding"] = interval["embedding"] + both_s
        interval["embedding_forward"] = interval["embedding_forward"] + forward_s
    return interval


def encoder_s(figures: LayerFigures, encoder: Transformer, layouts: Layouts, groups: Mapping[str, Group]) -> Pair:
    """Return what an encoder of images takes of one micro-batch, both ways and forward, its projector included.

    Parameters
    ----------
    figures, encoder, layouts, groups
        What the network's layouts share; the encoder; the layouts, and their groups of ranks by name.
    """
    network = figures.transformer
    interval = _group_intervals(
        replace(figures, transformer=encoder, expert_imbalance=1.0), encoder_layouts(network, layouts), groups
    )
    both_s, forward_s = kind_times(encoder, interval)
    layers_s, ahead_s = ((layer_counts(encoder) * one).sum(axis=0) for one in (both_s, forward_s))
    ahead_s = ahead_s + interval["embedding_forward"] + interval["head_forward"]
    return layers_s + interval["embedding"] + interval["head"], ahead_s


_ROWS = ("forward_s", "backward_s", "attention_s", "last_s")  # of a layer that are kept


@lru_cache(maxsize=64)
def _known_computing(transformer: Transformer, speeds: Speeds, expert_imbalance: float, module_set: int) -> Known:
    """Return what is known of layers and ends on one device, and of what a set of modules computes again: see below."""
    return Known()


def _computing_s(
    figures: LayerFigures, layouts: Layouts, module_sets: Sequence[int]
) -> tuple[list[LayerSeconds], Floats, Floats]:
    """Return the seconds of a layer of each kind, of embedding and head, of layouts that differ in what is computed."""
    network, speeds = figures.transformer, Speeds(figures.reached_rates, figures.software, figures.constants)
    known = partial(_known_computing, network, speeds, figures.expert_imbalance)
    numbers = [np.broadcast_to(layouts.arrays()[name], len(layouts)) for name in _COMPUTING]

    def layers(some: Layouts, sets: Sequence[int]) -> list[LayerSeconds]:
        met: dict[TransformerOperator, tuple[Floats, Floats]] = {}
        return [
            layer_seconds(
                network, kind, some, speeds, expert_imbalance=figures.expert_imbalance, module_sets=sets, known=met
            )
            for kind in network.kind_counts
        ]

    def whole(places: Ints) -> Floats:
        some = layouts.of(places)
        rows = [getattr(one, name) for one in layers(some, ()) for name in _ROWS]
        ends = [of_end(network, some, speeds) for of_end in (embedding_s, head_s)]
        return np.array([np.broadcast_to(row, len(places)) for row in (*rows, *ends)])

    made: dict[bytes, list[LayerSeconds]] = {}  # of all sets together, most often of the same layouts

    def again(places: Ints, row: int) -> Floats:
        key = places.tobytes()
        made[key] = made.get(key) or layers(layouts.of(places), module_sets)
        return np.array([one.modules_s[row] for one in made[key]])

    rows = known(0).of(numbers, whole)
    sets = [known(number).of(numbers, partial(again, row=row)) for row, number in enumerate(module_sets)]
    modules = np.array(sets).reshape(len(sets), len(network.kind_counts), len(layouts))
    found = [
        LayerSeconds(**dict(zip(_ROWS, rows[index * len(_ROWS) :], strict=False)), modules_s=modules[:, index])
        for index in range(len(network.kind_counts))
    ]
    return found, rows[-2], rows[-1]


def _layer_parts(
    figures: LayerFigures,
    layouts: Layouts,
    kind: LayerKind,
    layer: LayerSeconds,
    groups: Mapping[str, Group],
    module_sets: Sequence[int],
) -> dict[str, Floats]:
    """Return what the device does for one layer and micro-batch, both ways."""
    network, software = figures.transformer, figures.software
    times = communication_times(
        layer_communication(
            network,
            layouts,
            kind,
            expert_imbalance=figures.expert_imbalance,
            spread=figures.spread,
            gathered_bytes=software.gathered_bytes,
        ),
        groups,
    )
    learning = network.learning_of(kind)
    outside, routed = trained_elements(network, kind)
    held = outside / layouts.tensor + routed / (layouts.expert_tensor * layouts.expert)
    added_s = move_s(held * software.accumulation_bytes * figures.constants.accumulation_ratio, figures.reached_rates)
    compute = layer.forward_s + layer.backward_s + added_s
    # Without a backward pass nothing is computed again.
    is_full = (layouts.recompute == Recompute.FULL) & (learning != "front")
    again_s = layer.again_s(layouts.recompute, software, layouts.recompute_modules, module_sets)
    tensor, routed_tensor = (
        figures.exposed_s(compute, times[name]) if name in times else np.zeros(1)
        for name in ("tensor", "expert_tensor")
    )
    expert = times["experts"].total_s if "experts" in times else np.zeros(len(layouts))
    beside_s = figures.beside(compute, expert, _exchange_contention(figures, groups) if "experts" in times else None)
    attention = _LAUNCHES[learning] * layer.attention_s + np.where(is_full, layer.attention_s, 0.0)
    parts = {
        "compute": compute,
        "recompute": again_s * (learning != "front"),
        # Around routed experts nothing runs beside the gathers.
        "tensor": np.where(layouts.overlap_tensor, figures.beside(compute, tensor), tensor) + routed_tensor,
        "expert": np.where(layouts.overlap_expert, beside_s, expert),
        "context": _context_s(figures, layouts, kind, attention, times, groups),
    }
    # Launching a layer's kernels takes a floor of the host's time, of which the device's own is no part: backward twice
    # forward; of modules that are computed again as much of it as they are of the layer.
    device_s = sum_of(layouts, parts.values())
    launch_s: Floats | float = software.launch_s * software.launch_ratio
    sharpness = _LAUNCH_SHARPNESS
    if KINDS[kind].feed_forward == "moe" and network.experts is not None:
        each_s = software.expert_launch_s * network.experts.num_experts / layouts.expert
        launch_s = launch_s * software.expert_floor_ratio + each_s
        sharpness = _WAITING_SHARPNESS if software.expert_launch_s else sharpness
    again = is_full + np.where(layouts.recompute_modules > 0, parts["recompute"] / layer.forward_s, 0.0) * ~is_full
    floor_s = launch_s * (_LAUNCHES[learning] + again)
    floor_s = floor_s * (1 + figures.constants.tensor_floor_ratio * (layouts.tensor > 1))
    took_s, shown_s = (longer_of(one, floor_s, sharpness) for one in (device_s, device_s + expert - parts["expert"]))
    parts["launch"] = took_s - device_s
    return {**parts, "forward": layer.forward_s, "hidden": (shown_s - took_s) * layouts.overlap_expert}


def _exchange_contention(figures: LayerFigures, groups: Mapping[str, Group]) -> Floats:
    """Return the share of the shorter of computing and experts' exchange that shows where both run side by side.

    Between machines cards send, and beside them few multiprocessors where a program sends by DeepEP or HybridEP, as
    many as for any collective where it sends by NCCL; inside one multiprocessors do. There nothing is hidden unless
    kernels are captured: the host, which launches layers in pieces then, has no time left. On 64 B200 Qwen3-235B took
    17.2 s with experts on 8 overlapped and 16.0 s without (Megatron-Bridge, pull request 1760), on B300 it was slower,
    too (issue 3399).
    """
    software, constants = figures.software, figures.constants
    inside = constants.contention if software.launch_ratio < 1 else 1.0
    outside = constants.exchange_contention if software.sends_once else constants.contention
    is_outside = groups["expert"].is_crossed[figures.num_inner_tiers :].any(axis=0)
    return np.where(is_outside, outside, inside)


def _context_s(
    figures: LayerFigures,
    layouts: Layouts,
    kind: LayerKind,
    attention: Floats,
    times: Mapping[str, CommunicationTimes],
    groups: Mapping[str, Group],
) -> Floats:
    """Return what nothing hides of how context ranks see keys and values; where the method is any, that of the best."""

    def shown(times: Mapping[str, CommunicationTimes]) -> Floats:
        exposed = times[EXPOSED_CONTEXT].total_s if EXPOSED_CONTEXT in times else np.zeros(1)
        return figures.beside(attention, times["context"].total_s) + exposed

    network, context = figures.transformer, layouts.context
    is_open = (layouts.context_method == ANY_CONTEXT_METHOD) & (context > 1)
    if not is_open.any():
        return shown(times)
    best = np.full(len(layouts), inf)
    for method in map(int, ContextMethod):
        own = replace(layouts, context_method=np.full(len(layouts), method))
        seconds = shown(communication_times(context_communication(network, own, kind), groups))
        has = has_heads(network, context, layouts.tensor, own.context_method)
        best = np.minimum(best, np.where(has, seconds, inf))
    return np.where(is_open, best, shown(times))


def behind_schedule_s(
    figures: LayerFigures, layouts: Layouts, communicated: Pair, forward: Floats, both: Floats
) -> Pair:
    """Return what nothing hides of a step's reductions, and of its gathers.

    Beside the stage's work, launching included: ZeRO-3 in every micro-batch, the others beside the last one's backward
    and the next one's forward. Programs that reduce gradients of a pipeline behind it hide nothing of that.

    Parameters
    ----------
    figures, layouts
        What the layouts share, and n of them.
    communicated
        Seconds of all reductions and of all gathers, if nothing hides them.
    forward, both
        Of one micro-batch on the stage: the forward pass, and both.
    """
    reduced, gathered = communicated
    is_whole = layouts.zero == 3
    passes = np.where(is_whole, layouts.num_microbatches, 1)
    ahead = np.where(is_whole, gathered / 2, gathered)  # ZeRO-3 gathers half beside forward, half beside backward
    alone = np.where(figures.software.reduces_behind_stages & (layouts.pipeline > 1), reduced, 0.0)
    behind = reduced - alone + np.where(is_whole, gathered / 2, 0.0)
    overlaps = layouts.overlap_data & (layouts.context * layouts.data > 1)
    hidden_ahead = figures.beside(passes * forward, ahead)
    hidden_behind = figures.beside(passes * (both - forward), behind)
    return alone + np.where(overlaps, hidden_behind, behind), np.where(overlaps, hidden_ahead, ahead)


def optimizer_bytes(
    transformer: Transformer, software: Software, layouts: Layouts, layers: Ints | Floats, has_end: Bools
) -> Floats:
    """Return the bytes of state that a stage's step of the optimiser moves on one device; ZeRO of any stage shards it.

    Parameters
    ----------
    transformer, software, layouts
        The network, the program, and the layouts.
    layers
        Of stages by kind, shape (kinds, p, n).
    has_end
        Whether they hold embedding or head, shape (p, n).
    """
    counts = transformer.kind_counts
    trained = [trained_elements(transformer, kind) for kind in counts]
    share = layers / layer_counts(transformer)[:, None]
    dense_held, routed_held = (
        (np.array([*counts.values()] * np.array(one), dtype=np.float64)[:, None, None] * share).sum(axis=0)
        for one in zip(*trained, strict=True)
    )
    embedding, head = trained_ends(transformer)
    ends = np.where(layouts.has_ends_together, embedding + head, max(embedding, head))
    ranks = np.where(layouts.zero > 0, layouts.sharing_ranks, 1)
    dense = (dense_held + ends * has_end) / layouts.tensor
    copies = np.where(layouts.zero > 0, ranks / layouts.expert_share, 1)
    experts_held = routed_held / (layouts.expert_tensor * layouts.expert) / copies
    held = dense / ranks + experts_held
    more = software.end_optimizer_bytes * ends * has_end / layouts.tensor / ranks
    return np.asarray(held * software.optimizer_bytes + more)


def whole_matrices_s(figures: LayerFigures, rates: DeviceRates, layouts: Layouts, layers: Ints) -> Floats:
    """Return what the optimiser of stages computes with whole matrices, shape (p, n); 0 of most optimisers.

    Ranks that share the state share the matrices; one of them has the one that takes most.

    Parameters
    ----------
    figures, rates, layouts
        What the layouts share; of the device; the layouts.
    layers
        Of stages by kind, shape (kinds, p, n).
    """
    if not figures.software.has_matrix_optimizer:
        return np.zeros(1)
    shared = np.where(layouts.zero > 0, layouts.sharing_ranks, 1)
    flop, largest = np.zeros(layers.shape[1:]), np.zeros(layers.shape[1:])
    for kind, held in zip(figures.transformer.kind_counts, layers, strict=True):
        one = matrices_of(figures.transformer, kind, layouts)
        flop, largest = flop + held * one.flop, np.maximum(largest, (held > 0) * one.largest_flop)
    return np.asarray(np.maximum(flop / shared, largest) / rates.multiplied_flop_per_s)


def layer_times(transformer: Transformer, interval: Mapping[str, Floats]) -> Pair:
    """Return the seconds of a layer in the mean of all, both ways and forward, shape (n,).

    Parameters
    ----------
    transformer, interval
        As for :func:`planner.models.transformer_time.stage_times`.
    """
    both, forward = (mean_layer(transformer, one) for one in kind_times(transformer, interval))
    return both, forward


def kind_times(transformer: Transformer, interval: Mapping[str, Floats]) -> Pair:
    """Return the seconds of a layer of each kind, both ways and forward, shape (kinds, n).

    Communication and launching fall to ways as computing does.

    Parameters
    ----------
    transformer, interval
        As for :func:`planner.models.transformer_time.stage_times`.
    """
    both = np.asarray(sum(interval[name] for name in LAYER_PARTS)) / layer_counts(transformer)
    return both, both * interval["forward"] / (interval["compute"] + interval["recompute"])
