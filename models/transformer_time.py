"""Seconds of a transformer's training step in many layouts at once, with its parts, which sum to the total.

**One micro-batch on one machine group.** :func:`interval_times` gives what all layers compute (products, attention and
memory: :mod:`planner.models.compute`), compute again, communicate (tensor, context and expert groups:
:mod:`planner.models.transformer_communication`) and wait for kernels to be launched, and what embedding, head and a
transfer to the next stage take. Communication is exposed unless a layout overlaps it; then the longer of the two
counts, and a fitted share of the shorter, their contention for the device's memory and multiprocessors.

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

:class:`Step` is the general case: 1F1B over any cut and any groups, ZeRO 0 and 1, without virtual stages.
:func:`iteration_times` is its reduction to layers that are dealt out evenly to one group
(:func:`planner.models.layouts.dealt_layers`): three stages stand for all, for the schedule, too, where those between
the ends are equal, by closed forms; of layers of several kinds those stand for all of which one is the busiest
(:func:`planner.models.layouts.busiest_stages`). It knows every schedule, ZeRO 2 and 3 and virtual stages. Tests hold
one against the other.

Leaves out stragglers, input, checkpoints, and the memory that a nearly full device is short of.

**A profile layer by layer**, for families that know layers only. In all it takes what :func:`iteration_times` says of
one device, so that every family computes as long as ``hybrid`` does with the same samples at a time. Blocks, embedding
and head take what :mod:`planner.models.compute` gives them; inside each, seconds are shared out by multiply-adds, so
that cuts inside a block, and when a gradient in it is ready, are estimates.

**Programs** that train transformers: what they keep in memory, and what they have. What they take in seconds stands,
under the same names, in :mod:`planner.data.fits`. Sources:

- ``megatron-lm``, ``megatron-deepspeed`` (2021 and 2022, fp16): 16 bytes a parameter (S. Rajbhandari et al., arXiv
  1910.02054, section 3.1); scores and masks of dropout are kept (V. Korthikanti et al., arXiv 2205.05198, section 4);
- ``megatron-lm-fused``: 18 bytes, as the GEMM that gives a gradient adds it up in four (the same, figure 1);
- ``megatron-deepspeed-bf16``: DeepSpeed's optimiser for bf16 as it stood early in 2022: gradients in two bytes, their
  sums and the master copy in four, whole on every device; only the moments are sharded (docs/transformer_memory.md);
- ``megatron-core``: 18 bytes; told so, gradients in two bytes (``--grad-reduce-in-bf16``);
- ``nanotron``: 20 bytes: gradients in two bytes beside their sums in four (``accumulate_grad_in_fp32``);
- ``composer-fsdp``, ``torchtitan``: PyTorch's fully sharded data parallel. Composer's loss is FlashAttention's
  kernel, torchtitan's is compiled with the model: neither copies logits. torchtitan's selective recomputation keeps
  what attention and every second matrix put out (its default, by operators: ``_apply_ac_to_transformer_block`` of
  ``parallelize_llama.py``); a compiled model does not keep what nobody reads.

What a program has is by its own options: Megatron-Core 0.16 (``--overlap-grad-reduce``, ``--tp-comm-overlap``,
``--sequence-parallel``, ``--use-distributed-optimizer``; ``--cp-comm-type`` p2p, all_gather, a2a and a2a+p2p);
torchtitan splits the sequence with every tensor degree, and overlaps that communication where the model is compiled;
fully sharded data parallelism always gathers ahead. Those of 2021 and 2022 send gradients behind the backward pass, and
overlap no tensor-parallel communication.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from math import inf

import numpy as np

from planner.cost import Floats, Profile
from planner.dnn import Dnn
from planner.models.communication import Group, Tier, groups_of
from planner.models.compute import (
    Constants,
    DeviceRates,
    LayerSeconds,
    Software,
    embedding_s,
    head_s,
    layer_seconds,
    move_s,
)
from planner.models.known import KnownColumns
from planner.models.layouts import (
    ANY_CONTEXT_METHOD,
    SCHEDULE_NAMES,
    Bools,
    BusyStages,
    ContextMethod,
    EvenCut,
    Ints,
    Layouts,
    Recompute,
    Schedule,
    busiest_stages,
    cut_of,
    dealt_layers,
    folded_layers,
    fullest_layers,
    layers_by_kind,
)
from planner.models.low_precision import NUMBER_TYPES, NumberType
from planner.models.memory import KERNELS, PRECISIONS, Kernels, Precision
from planner.models.operators import TransformerOperator, encoder_layouts, trained_elements, trained_ends
from planner.models.optimizers import matrices_of
from planner.models.roofline import longer_of
from planner.models.schedule import one_forward_one_backward_s, played_s
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
    replica_communication,
    replica_times,
)
from planner.models.transformer_schedule import Stages, lower_bound_s, order_name, path_bound_s, step_s
from planner.trained import Learning
from planner.transformer import KINDS, LayerKind, Transformer

LAYER_PARTS = ("compute", "recompute", "tensor", "expert", "context", "launch")  # of what a device does for its layers
PARTS = (*LAYER_PARTS, "bubble", "pipeline", "data", "optimizer")
_INTERVAL = (*LAYER_PARTS, "forward", "hidden")  # of compute, what the forward pass takes; what overlapped experts hide

_COMPUTING = ("tensor", "context", "expert", "expert_tensor", "microbatch", "sequence_parallel")
_RECOMPUTING = ("recompute", "recompute_modules")
_COMMUNICATING = (
    *(*_COMPUTING, "pipeline", "data", *_RECOMPUTING),
    *("overlap_tensor", "overlap_expert", "order", "context_method"),
)
_SHARING = ("data", "order", "zero", "shard", "num_microbatches")
_REPLICATING = ("tensor", "context", "expert", "expert_tensor", "pipeline", *_SHARING)
_LAUNCH_SHARPNESS = 3.0  # a layer's kernels differ: while some fill the device, others wait for the host
# Of what embedding and head compute, what is forward: of frozen ones no product gives a gradient of weights.
_FORWARD_OF_ENDS: Mapping[Learning, float] = {"trained": 1 / 3, "frozen": 1 / 2, "front": 1.0}
# Launching a layer's kernels: forward once, and backward as often for each gradient that its products give.
_LAUNCHES: Mapping[Learning, float] = {"trained": 3.0, "frozen": 2.0, "front": 1.0}

Pair = tuple[Floats, Floats]  # forward, and both ways


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """All that the layouts share; ``tiers`` with the bandwidths that collectives reach."""

    transformer: Transformer
    tiers: tuple[Tier, ...]
    rates: DeviceRates
    software: Software
    constants: Constants
    expert_imbalance: float

    @property
    def reduction(self) -> Reduction:
        """How the program adds up gradients."""
        software = self.software
        return Reduction(
            gradient_bytes=software.gradient_bytes,
            weight_bytes=software.weight_bytes,
            bucket_bytes=software.bucket_bytes,
            reduces_every_microbatch=software.reduces_every_microbatch,
            shards_gradients=software.shards_gradients,
            tied_gradient_bytes=software.tied_gradient_bytes,
        )

    def beside(self, computing: Floats, communication: Floats) -> Floats:
        """Return what communication adds to computing that it runs beside: what is longer, and some of the shorter."""
        shorter = np.minimum(computing, communication)
        both = np.maximum(computing, communication) + self.constants.contention * shorter
        return np.asarray(both - computing)

    def exposed_s(self, compute: Floats, times: CommunicationTimes) -> Floats:
        """Return the seconds of communication, those that backward computes beside only as far as they show."""
        return times.total_s + self.beside(compute / 2, times.hidden_backward_s)


def _reached_tiers(tiers: Sequence[Tier], constants: Constants) -> tuple[Tier, ...]:
    """Return tiers with the bandwidths that collectives reach, and their start-up for each hop."""
    return tuple(
        replace(
            tier,
            bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s
            * (constants.outside_efficiency if index else constants.inside_efficiency),
            latency_s=tier.latency_s + constants.hop_s,
        )
        for index, tier in enumerate(tiers)
    )


def _sum_of(layouts: Layouts, arrays: Iterable[Floats]) -> Floats:
    """Return the sum of some arrays, one element a layout."""
    return sum(arrays, start=np.zeros(len(layouts)))


def _of_stages(layers: Ints, by_kind: Floats) -> Floats:
    """Return what the layers of stages take together, shape (p, n): of (kinds, p, n), and of a layer (kinds, n)."""
    return np.asarray((layers * by_kind[:, None]).sum(axis=0))


def _counts(transformer: Transformer) -> Ints:
    """Return the layers of each kind, shape (kinds, 1)."""
    return np.array([*transformer.kind_counts.values()])[:, None]


def mean_layer(transformer: Transformer, by_kind: Floats) -> Floats:
    """Return the mean over all layers of what a layer of each kind takes.

    Parameters
    ----------
    transformer, by_kind
        The network; of shape (kinds, n), as :attr:`planner.transformer.Transformer.kind_counts` lists kinds.
    """
    return np.asarray((_counts(transformer) / transformer.num_layers * by_kind).sum(axis=0))


# -- one micro-batch through all layers --------------------------------------------------------------------------------


def interval_times(
    transformer: Transformer,
    layouts: Layouts,
    *,
    tiers: Sequence[Tier],
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> Mapping[str, Floats]:
    """Return the seconds of one micro-batch through all layers, by part, and of what is no layer.

    Parameters
    ----------
    transformer, layouts, tiers, rates, software, constants, expert_imbalance
        As for :func:`iteration_times`.

    Returns
    -------
    :data:`LAYER_PARTS`, and ``forward`` (of ``compute``, what the forward pass takes), of all layers of each kind,
    shape (kinds, n), as :attr:`planner.transformer.Transformer.kind_counts` lists them; besides ``embedding`` and
    ``head``, both ways and with their communication, ``embedding_forward`` and ``head_forward`` of them, and
    ``transfer``, what a device waits for one virtual stage's passage to the next, and ``transfer_hidden``, what of it
    is beside its computing, shape (n,).
    """
    return _intervals(_common_of(transformer, tiers, rates, software, constants, expert_imbalance), layouts)


def _common_of(
    transformer: Transformer,
    tiers: Sequence[Tier],
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float,
) -> _Common:
    """Return what layouts share, for tiers with the bandwidths that links are sold by."""
    return _Common(
        transformer=transformer,
        tiers=_reached_tiers(tiers, constants),
        rates=rates.under(software),
        software=software,
        constants=constants,
        expert_imbalance=expert_imbalance,
    )


def _intervals(common: _Common, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the same, and ``transfer_hidden``: what of a passage a device computes beside.

    Interleaved stages send and receive beside the next chunk, where the program does (Megatron-Core: on by default,
    ``--no-overlap-p2p-communication``), so that a device waits for what is longer than a chunk one way. Handing on
    takes a while in any case: kernels are launched and waited for, whatever is sent.
    """
    found = _recomputed_intervals(common, layouts)
    transfer_s, handing_s = found["transfer"], common.constants.send_s * (layouts.pipeline > 1)
    if not (common.software.overlaps_transfers and np.any(layouts.interleave > 1)):
        return {**found, "transfer": transfer_s + handing_s, "transfer_hidden": np.zeros(transfer_s.shape)}
    whole_s = _sum_of(layouts, (found[name].sum(axis=0) for name in LAYER_PARTS))
    chunk_s = whole_s / (2 * layouts.pipeline * layouts.interleave)
    is_beside = (layouts.interleave > 1) & (layouts.schedule == Schedule.ONE_F_ONE_B)
    shown_s = np.where(is_beside, np.maximum(transfer_s - chunk_s, 0.0), transfer_s)
    return {**found, "transfer": shown_s + handing_s, "transfer_hidden": transfer_s - shown_s}


def _recomputed_intervals(common: _Common, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the same; where some layers of a stage are computed again, in proportion of layers with and without."""
    found = _alike_intervals(common, layouts)
    some = np.flatnonzero(np.broadcast_to(layouts.recompute_layers, len(layouts)))
    if not len(some):
        return found
    few = layouts.of(some)
    none = np.full(len(some), int(Recompute.NONE))
    without = _alike_intervals(common, replace(few, recompute=none))
    share = few.recomputed_share(-(-common.transformer.num_layers // few.pipeline))
    mixed = {name: array.copy() for name, array in found.items()}
    for name, array in mixed.items():
        if common.transformer.encoder is not None and name.startswith("embedding"):
            continue  # all of an encoder is computed again
        array[..., some] = share * array[..., some] + (1 - share) * without[name]
    return mixed


def _alike_intervals(common: _Common, layouts: Layouts) -> Mapping[str, Floats]:
    """Return the same of layers that are all computed again or none, once for each combination of few decisions."""
    interval_of, to_interval = layouts.distinct(_COMMUNICATING)
    few = layouts.of(interval_of)
    groups = groups_of(common.tiers, few, context_axes(common.transformer, few))
    return {name: array[..., to_interval] for name, array in _group_intervals(common, few, groups).items()}


def _group_intervals(common: _Common, layouts: Layouts, groups: Mapping[str, Group]) -> dict[str, Floats]:
    """Return the same of layouts whose groups of ranks are known."""
    network, constants, software = common.transformer, common.constants, common.software
    layer_of, to_layer = layouts.distinct(_COMPUTING)
    few = layouts.of(layer_of)
    sets = np.unique(np.where(layouts.recompute == Recompute.SELECTIVE, layouts.recompute_modules, 0))
    module_sets = tuple(int(one) for one in sets if one)
    interval = {name: np.zeros((len(network.kind_counts), len(layouts))) for name in _INTERVAL}
    by_kind, embedding, head = _computing_s(common, few, module_sets)
    for index, (kind, count) in enumerate(network.kind_counts.items()):
        layer = by_kind[index]
        layer = LayerSeconds(**{name: getattr(layer, name)[..., to_layer] for name in LayerSeconds.__slots__})
        for name, seconds in _layer_parts(common, layouts, kind, layer, groups, module_sets).items():
            interval[name][index] = count * seconds
    sent = communication_times(pipeline_communication(network, layouts), groups)
    interval["transfer"] = _sum_of(layouts, (one.forward_s for one in sent.values())) / layouts.interleave
    # The ends' tensor-parallel communication is exposed, but for the gather beside the head's backward product.
    if network.projector is None:
        head = head + constants.head_floor_ratio * software.launch_s * software.launch_ratio
    for name, seconds, communicated in (
        ("embedding", embedding[to_layer], first_stage_communication(network, layouts)),
        ("head", head[to_layer], last_stage_communication(network, layouts)),
    ):
        (times,) = communication_times(communicated, groups).values()
        interval[name] = seconds + common.exposed_s(seconds, times)
        ahead = _FORWARD_OF_ENDS[network.learning_of(name)]
        interval[f"{name}_forward"] = ahead * seconds + times.forward_s
    if network.encoder is not None:
        both_s, forward_s = _encoder_s(common, network.encoder, layouts, groups)
        interval["embedding"] = interval["embedding"] + both_s
        interval["embedding_forward"] = interval["embedding_forward"] + forward_s
    return interval


def _encoder_s(common: _Common, encoder: Transformer, layouts: Layouts, groups: Mapping[str, Group]) -> Pair:
    """Return what an encoder of images takes of one micro-batch, both ways and forward, its projector included."""
    network = common.transformer
    interval = _group_intervals(
        replace(common, transformer=encoder, expert_imbalance=1.0), encoder_layouts(network, layouts), groups
    )
    both_s, forward_s = kind_times(encoder, interval)
    layers_s, ahead_s = ((_counts(encoder) * one).sum(axis=0) for one in (both_s, forward_s))
    ahead_s = ahead_s + interval["embedding_forward"] + interval["head_forward"]
    return layers_s + interval["embedding"] + interval["head"], ahead_s


_ROWS = ("forward_s", "backward_s", "attention_s", "last_s")  # of a layer that are kept


@lru_cache(maxsize=64)
def _known_computing(
    transformer: Transformer,
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float,
    module_set: int,
) -> KnownColumns:
    """Return what is known of layers and ends on one device, and of what a set of modules computes again: see below."""
    kinds = len(transformer.kind_counts)
    return KnownColumns(kinds if module_set else kinds * len(_ROWS) + 2)


def _computing_s(
    common: _Common, layouts: Layouts, module_sets: Sequence[int]
) -> tuple[list[LayerSeconds], Floats, Floats]:
    """Return the seconds of a layer of each kind, of embedding and head, of layouts that differ in what is computed."""
    network, rates, software, constants = common.transformer, common.rates, common.software, common.constants
    known = partial(_known_computing, network, rates, software, constants, common.expert_imbalance)
    numbers = [np.broadcast_to(layouts.arrays()[name], len(layouts)) for name in _COMPUTING]

    def layers(some: Layouts, sets: Sequence[int]) -> list[LayerSeconds]:
        met: dict[TransformerOperator, tuple[Floats, Floats]] = {}
        return [
            layer_seconds(
                network,
                kind,
                some,
                rates=rates,
                software=software,
                constants=constants,
                expert_imbalance=common.expert_imbalance,
                module_sets=sets,
                known=met,
            )
            for kind in network.kind_counts
        ]

    def whole(places: Ints) -> Floats:
        some = layouts.of(places)
        rows = [getattr(one, name) for one in layers(some, ()) for name in _ROWS]
        ends = [
            of_end(network, some, rates=rates, software=software, constants=constants)
            for of_end in (embedding_s, head_s)
        ]
        return np.array([np.broadcast_to(row, len(places)) for row in (*rows, *ends)])

    def again(places: Ints, number: int) -> Floats:
        return np.array([one.modules_s[0] for one in layers(layouts.of(places), (number,))])

    rows = known(0).of(numbers, whole)
    sets = [known(number).of(numbers, partial(again, number=number)) for number in module_sets]
    modules = np.array(sets).reshape(len(sets), len(network.kind_counts), len(layouts))
    found = [
        LayerSeconds(**dict(zip(_ROWS, rows[index * len(_ROWS) :], strict=False)), modules_s=modules[:, index])
        for index in range(len(network.kind_counts))
    ]
    return found, rows[-2], rows[-1]


def _layer_parts(
    common: _Common,
    layouts: Layouts,
    kind: LayerKind,
    layer: LayerSeconds,
    groups: Mapping[str, Group],
    module_sets: Sequence[int],
) -> dict[str, Floats]:
    """Return what the device does for one layer and micro-batch, both ways."""
    network, software = common.transformer, common.software
    times = communication_times(
        layer_communication(
            network,
            layouts,
            kind,
            expert_imbalance=common.expert_imbalance,
            sends_once=software.sends_once,
            gathered_bytes=software.gathered_bytes,
        ),
        groups,
    )
    learning = network.learning_of(kind)
    outside, routed = trained_elements(network, kind)
    held = outside / layouts.tensor + routed / (layouts.expert_tensor * layouts.expert)
    added_s = move_s(held * software.accumulation_bytes * common.constants.accumulation_ratio, common.rates)
    compute = layer.forward_s + layer.backward_s + added_s
    # Without a backward pass nothing is computed again.
    is_full = (layouts.recompute == Recompute.FULL) & (learning != "front")
    again_s = layer.again_s(layouts.recompute, software, layouts.recompute_modules, module_sets)
    tensor, routed_tensor = (
        common.exposed_s(compute, times[name]) if name in times else np.zeros(1) for name in ("tensor", "expert_tensor")
    )
    expert = times["experts"].total_s if "experts" in times else np.zeros(len(layouts))
    attention = _LAUNCHES[learning] * layer.attention_s + np.where(is_full, layer.attention_s, 0.0)
    parts = {
        "compute": compute,
        "recompute": again_s * (learning != "front"),
        # Around routed experts nothing runs beside the gathers.
        "tensor": np.where(layouts.overlap_tensor, common.beside(compute, tensor), tensor) + routed_tensor,
        "expert": np.where(layouts.overlap_expert, common.beside(compute, expert), expert),
        "context": _context_s(common, layouts, kind, attention, times, groups),
    }
    # Launching a layer's kernels takes a floor of the host's time, of which the device's own is no part: backward twice
    # forward; of modules that are computed again as much of it as they are of the layer.
    device_s = _sum_of(layouts, parts.values())
    launch_s: Floats | float = software.launch_s * software.launch_ratio
    if KINDS[kind].feed_forward == "moe" and network.experts is not None:
        each_s = software.expert_launch_s * network.experts.num_experts / layouts.expert
        launch_s = launch_s * software.expert_floor_ratio + each_s
    again = is_full + np.where(layouts.recompute_modules > 0, parts["recompute"] / layer.forward_s, 0.0) * ~is_full
    floor_s = launch_s * (_LAUNCHES[learning] + again)
    floor_s = floor_s * (1 + common.constants.tensor_floor_ratio * (layouts.tensor > 1))
    took_s, shown_s = (
        longer_of(one, floor_s, _LAUNCH_SHARPNESS) for one in (device_s, device_s + expert - parts["expert"])
    )
    parts["launch"] = took_s - device_s
    return {**parts, "forward": layer.forward_s, "hidden": (shown_s - took_s) * layouts.overlap_expert}


def _context_s(
    common: _Common,
    layouts: Layouts,
    kind: LayerKind,
    attention: Floats,
    times: Mapping[str, CommunicationTimes],
    groups: Mapping[str, Group],
) -> Floats:
    """Return what nothing hides of how context ranks see keys and values; where the method is any, that of the best."""

    def shown(times: Mapping[str, CommunicationTimes]) -> Floats:
        exposed = times[EXPOSED_CONTEXT].total_s if EXPOSED_CONTEXT in times else np.zeros(1)
        return common.beside(attention, times["context"].total_s) + exposed

    network, context = common.transformer, layouts.context
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


# -- behind the schedule: replicas' communication and the optimiser, of any stages -------------------------------------


def _behind_s(common: _Common, layouts: Layouts, communicated: Pair, forward: Floats, both: Floats) -> Pair:
    """Return what nothing hides of a step's reductions, and of its gathers.

    Beside the stage's work, launching included: ZeRO-3 in every micro-batch, the others beside the last one's backward
    and the next one's forward.

    Parameters
    ----------
    communicated
        Seconds of all reductions and of all gathers, if nothing hides them.
    forward, both
        Of one micro-batch on the stage: the forward pass, and both.
    """
    reduced, gathered = communicated
    is_whole = layouts.zero == 3
    passes = np.where(is_whole, layouts.num_microbatches, 1)
    ahead = np.where(is_whole, gathered / 2, gathered)  # ZeRO-3 gathers half beside forward, half beside backward
    behind = reduced + np.where(is_whole, gathered / 2, 0.0)
    overlaps = layouts.overlap_data & (layouts.context * layouts.data > 1)
    hidden_ahead = common.beside(passes * forward, ahead)
    hidden_behind = common.beside(passes * (both - forward), behind)
    return np.where(overlaps, hidden_behind, behind), np.where(overlaps, hidden_ahead, ahead)


def _optimizer_bytes(
    transformer: Transformer, software: Software, layouts: Layouts, layers: Ints | Floats, has_end: Bools
) -> Floats:
    """Return the bytes of state that a stage's step of the optimiser moves on one device; ZeRO of any stage shards it.

    Parameters
    ----------
    layers
        Of stages by kind, shape (kinds, p, n).
    has_end
        Whether they hold embedding or head, shape (p, n).
    """
    counts = transformer.kind_counts
    trained = [trained_elements(transformer, kind) for kind in counts]
    share = layers / _counts(transformer)[:, None]
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


def _matrices_s(common: _Common, rates: DeviceRates, layouts: Layouts, layers: Ints) -> Floats:
    """Return what the optimiser of stages computes with whole matrices, shape (p, n); 0 of most optimisers.

    Ranks that share the state share the matrices; one of them has the one that takes most.

    Parameters
    ----------
    layers
        Of stages by kind, shape (kinds, p, n).
    """
    if not common.software.has_matrix_optimizer:
        return np.zeros(1)
    shared = np.where(layouts.zero > 0, layouts.sharing_ranks, 1)
    flop, largest = np.zeros(layers.shape[1:]), np.zeros(layers.shape[1:])
    for kind, held in zip(common.transformer.kind_counts, layers, strict=True):
        one = matrices_of(common.transformer, kind, layouts)
        flop, largest = flop + held * one.flop, np.maximum(largest, (held > 0) * one.largest_flop)
    return np.asarray(np.maximum(flop / shared, largest) / rates.multiplied_flop_per_s)


# -- the step of an even cut on one group ------------------------------------------------------------------------------


def iteration_times(
    transformer: Transformer,
    layouts: Layouts,
    *,
    tiers: Sequence[Tier],
    rates: DeviceRates,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
    is_exact: bool = True,
    chunk_layers: Sequence[int] | Ints | None = None,
) -> Mapping[str, Floats]:
    """Return the seconds of one step of an even cut: every part of :data:`PARTS`, and ``total``, their sum.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    tiers
        Of the cluster, from the inside outwards, with the bandwidths that links are sold by; the fitted shares and
        start-up are put to them here.
    rates, software, constants
        Of device and program, and of all.
    expert_imbalance
        Tokens of the fullest rank's experts, over the mean; >= 1. All ranks wait for the fullest.
    is_exact
        Whether the schedule of virtual stages that differ is played; else its step is bounded from below.
    chunk_layers
        Layers of every virtual stage, in the order of the network, where they are not dealt out evenly: of all layouts
        or of each, shape (K,) or (K, n); all then have as many stages and chunks.

    Returns
    -------
    Arrays of shape (n,).
    """
    common = _common_of(transformer, tiers, rates, software, constants, expert_imbalance)
    if layouts.is_folded.any():
        return _some_folded_times(common, layouts, chunk_layers, is_exact=is_exact)
    return _straight_times(common, layouts, chunk_layers, is_exact=is_exact)


def _straight_times(
    common: _Common, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None, *, is_exact: bool
) -> Mapping[str, Floats]:
    """Return the same of layouts whose stages do not turn."""
    transformer, rates, software = common.transformer, common.rates, common.software
    interval = _intervals(common, layouts)
    number, stages, transfer = layouts.num_microbatches, layouts.pipeline, interval["transfer"]
    cut = cut_of(transformer.num_layers, layouts, chunk_layers)
    whole = {name: interval[name].sum(axis=0) for name in _INTERVAL}
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
    parts["bubble"] = np.maximum(scheduled - _sum_of(layouts, parts.values()), 0.0)
    held = np.array([np.broadcast_arrays(cut.most - cut.first_less, cut.most, cut.most - cut.last_less)])
    if busy is not None:  # the last stage is the third again
        held = busy.layers[:, [0, min(1, len(busy.index) - 1), -1, *range(2, len(busy.index) - 1)]]
    is_each = chunk_layers is not None and np.ndim(chunk_layers) > 1
    parts["data"] = _replicas_s(common, layouts, interval, held, is_each=is_each)
    fullest = fullest_layers(transformer, layouts, chunk_layers)
    moved = _optimizer_bytes(transformer, software, layouts, *fullest)
    matrices_s = _matrices_s(common, common.rates, layouts, fullest[0])
    parts["optimizer"] = (move_s(moved, rates) + matrices_s).max(axis=0)
    parts = {name: np.broadcast_to(parts[name], len(layouts)) for name in PARTS}
    return {**parts, "total": _sum_of(layouts, parts.values())}


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
    most = np.argmax(_of_stages(busy.layers, layer_s) + ends + sends * transfer, axis=0)[None]
    share = np.take_along_axis(busy.layers, most[None], axis=1)[:, 0] / _counts(transformer)
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
    apart_s = (interval["compute"] - interval["forward"]) / 2 / _counts(transformer)
    apart_s = apart_s * layouts.puts_off
    number, sent_s, is_behind = layouts.num_microbatches, busy.index * interval["transfer"], busy.index > 0
    embedding, forward = interval["embedding"], interval["embedding_forward"]
    head_s = np.where(is_behind, _of_stages(busy.before, ahead_s) + forward + sent_s, 0.0)
    passed = _of_stages(busy.before, layer_s - ahead_s - apart_s)
    tail_s = np.where(is_behind, passed + embedding - forward + sent_s, 0.0)
    own_s = number * (_of_stages(busy.layers, layer_s - apart_s) + ends)
    own_s = own_s + np.maximum(number * sends - is_behind, 0) * interval["transfer"]
    weights_s = number * _of_stages(busy.layers, apart_s)
    return np.asarray((head_s + own_s + np.maximum(tail_s, weights_s)).max(axis=0))


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
        names = (*_COMMUNICATING, "recompute_layers", "interleave", "schedule", "num_microbatches")
        chosen, back = layouts.distinct(names)
    layouts, interval = layouts.of(chosen), {name: array[..., chosen] for name, array in interval.items()}
    layer_s, ahead_s = kind_times(transformer, interval)
    apart_s = (interval["compute"] - interval["forward"]) / 2 / _counts(transformer)
    found = np.empty(len(layouts))
    cuts, of_cut = layouts.distinct(("pipeline", "interleave", "schedule"))
    for index, at in enumerate(cuts):
        some, number = np.flatnonzero(of_cut == index), layouts.num_microbatches
        p, v, schedule = (int(getattr(layouts, name)[at]) for name in ("pipeline", "interleave", "schedule"))
        layers = (dealt_layers(transformer.num_layers, p, v) if given is None else given).reshape(p * v, -1)
        layers = layers_by_kind(transformer, layers)
        forward, both, weights = (_of_stages(layers, one[:, some]) for one in (ahead_s, layer_s, apart_s))
        weights = weights * (schedule >= Schedule.ZB_H1)
        backward = both - forward - weights
        for row, name in ((0, "embedding"), (-1, "head")):
            forward[row] += interval[f"{name}_forward"][some]
            backward[row] += (interval[name] - interval[f"{name}_forward"])[some]
        forward[:-1] += interval["transfer"][some]
        backward[1:] += interval["transfer"][some]
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
    common: _Common, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None, *, is_exact: bool
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
        times = (_folded_times if index else _straight_times)(common, layouts.of(some), given, is_exact=is_exact)
        for name, seconds in times.items():
            found.setdefault(name, np.empty(len(layouts)))[some] = seconds
    return found


def _folded_times(
    common: _Common, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None, *, is_exact: bool
) -> Mapping[str, Floats]:
    """Return the same of layouts of as many stages, all of which turn at the last device.

    Its two virtual stages follow one another, so that nothing is sent between them; of DualPipe they stand on two
    devices. Each virtual stage is a task of the order that is played. The bound is what the busiest device computes.
    """
    transformer, number, p = common.transformer, layouts.num_microbatches, int(layouts.pipeline[0])
    interval, counts = _intervals(common, layouts), _counts(transformer)
    given = folded_layers(transformer.num_layers, p) if chunk_layers is None else np.asarray(chunk_layers)
    layers = layers_by_kind(transformer, given.reshape(2 * p, -1))
    layer_s, ahead_s = kind_times(transformer, interval)
    apart_s = (interval["compute"] - interval["forward"]) / 2 / counts
    forward, both, weights = (_of_stages(layers, one) for one in (ahead_s, layer_s, apart_s))
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
    busy_s = _sum_of(layouts, parts.values())
    scheduled = busy_s
    if is_exact:
        scheduled = _folded_s(layouts, (forward + sent[0], backward + sent[1], weights))
        scheduled = scheduled + filling_s(transformer, layouts, interval, chunk_layers)
    parts["bubble"] = np.maximum(scheduled - busy_s, 0.0)
    parts["data"] = _replicas_s(common, layouts, interval, on_device, is_each=chunk_layers is not None)
    has_end = np.arange(p)[:, None] == 0
    moved = _optimizer_bytes(transformer, common.software, layouts, on_device, has_end)
    matrices_s = _matrices_s(common, common.rates, layouts, on_device)
    parts["optimizer"] = (move_s(moved, common.rates) + matrices_s).max(axis=0)
    parts = {name: np.broadcast_to(parts[name], len(layouts)) for name in PARTS}
    return {**parts, "total": _sum_of(layouts, parts.values())}


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
    common: _Common, layouts: Layouts, interval: Mapping[str, Floats], layers: Ints, *, is_each: bool
) -> Floats:
    """Return what nothing hides of reductions and gathers, of the stage where that is most.

    ``layers``: of the first stage, one between, the last, and others between, by kind: shape (kinds, r, n);
    ``is_each``: whether equal layouts may have unlike ones.
    """
    chosen = back = np.arange(len(layouts))
    if not is_each:
        chosen, back = layouts.distinct((*_REPLICATING, *(["interleave"] if len(layers) > 1 else [])))
    few, counts = layouts.of(chosen), _counts(common.transformer)
    groups, layers = groups_of(common.tiers, few), np.broadcast_to(layers, (*layers.shape[:2], len(layouts)))
    is_first = (np.arange(layers.shape[1]) == 0)[:, None]
    rows = np.where(few.pipeline > 1, layers[..., chosen], counts[:, None] * is_first)
    three = replace(few, pipeline=np.where(few.pipeline > 1, 3, 1))  # they stand for all
    *spread, tied = replica_communication(common.transformer, three, common.reduction, layers=rows)
    times = replica_times(spread, groups).values()
    # A tied embedding is reduced between the two ends after the last micro-batch: alone, nothing runs beside it.
    tied_s = np.broadcast_to(replica_times([tied], groups)["tied"][0], len(few))[back]
    reduced, gathered = (_sum_of(few, (one[way] for one in times))[:, back] for way in (0, 1))
    layer_s, _ = kind_times(common.transformer, interval)
    forward = (layers * interval["forward"][:, None] / counts[:, None]).sum(axis=0)
    behind, ahead = _behind_s(common, layouts, (reduced, gathered), forward, _of_stages(layers, layer_s))
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


def layer_times(transformer: Transformer, interval: Mapping[str, Floats]) -> Pair:
    """Return the seconds of a layer in the mean of all, both ways and forward, shape (n,).

    Parameters
    ----------
    transformer, interval
        As for :func:`stage_times`.
    """
    both, forward = (mean_layer(transformer, one) for one in kind_times(transformer, interval))
    return both, forward


def kind_times(transformer: Transformer, interval: Mapping[str, Floats]) -> Pair:
    """Return the seconds of a layer of each kind, both ways and forward, shape (kinds, n).

    Communication and launching fall to ways as computing does.

    Parameters
    ----------
    transformer, interval
        As for :func:`stage_times`.
    """
    both = np.asarray(sum(interval[name] for name in LAYER_PARTS)) / _counts(transformer)
    return both, both * interval["forward"] / (interval["compute"] + interval["recompute"])


# -- the step of any cut on any groups ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """The devices of one machine group.

    Attributes
    ----------
    tiers
        How they are joined, from the inside outwards, as links are sold.
    rates
        Of each.
    between_bytes_per_s, between_latency_s
        Of one machine to machines of other groups, one direction; infinite where there are none.
    """

    tiers: tuple[Tier, ...]
    rates: DeviceRates
    between_bytes_per_s: float = inf
    between_latency_s: float = 0.0

    @property
    def joint_tiers(self) -> tuple[Tier, ...]:
        """The same, no wider outside of a machine than the links between groups."""
        rate, latency_s = self.between_bytes_per_s, self.between_latency_s
        if rate == inf:
            return self.tiers
        if len(self.tiers) == 1:
            return (*self.tiers, Tier(size=1, bandwidth_bytes_per_s=rate, latency_s=latency_s, num_rails=1))
        outside = [
            replace(
                tier,
                bandwidth_bytes_per_s=min(tier.bandwidth_bytes_per_s, rate / tier.num_rails),
                latency_s=max(tier.latency_s, latency_s),
            )
            for tier in self.tiers[1:]
        ]
        return (self.tiers[0], *outside)


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupSeconds:
    """Seconds of one micro-batch on devices of one group; arrays of shape (n,), of layers by kind of shape (kinds, n).

    Attributes
    ----------
    layer
        Of one layer of each kind, by part.
    layer_forward_s
        Of one layer's parts, what falls to the forward pass.
    computed_forward_s
        What one layer's forward pass computes, beside which weights may be gathered.
    embedding_s, head_s, embedding_forward_s, head_forward_s
        Both ways, and of that forward.
    transfer_s
        To the next stage on the same group.
    common, group, own, joint
        What they are of: see :func:`group_seconds`.
    """

    layer: Mapping[str, Floats]
    layer_forward_s: Floats
    computed_forward_s: Floats
    embedding_s: Floats
    head_s: Floats
    embedding_forward_s: Floats
    head_forward_s: Floats
    transfer_s: Floats
    common: _Common
    group: DeviceGroup
    own: Layouts
    joint: Layouts

    @cached_property
    def layer_s(self) -> Floats:
        """Of one layer of each kind, both ways."""
        return np.asarray(sum(self.layer.values(), np.zeros(1)))

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """Groups of the data ranks of all machine groups, as if they stood here, by name."""
        return groups_of(_reached_tiers(self.group.joint_tiers, self.common.constants), self.joint)

    @cached_property
    def between_s(self) -> Floats:
        """To the next stage on another group, as far as this side takes.

        All devices of a machine that hold the stage send or receive at the same time.
        """
        own, group, constants = self.own, self.group, self.common.constants
        if group.between_bytes_per_s == inf:
            return np.zeros(len(own))
        sharing = np.minimum(group.tiers[0].size, own.tensor * own.context * own.data)
        rate = np.broadcast_to(group.between_bytes_per_s * constants.outside_efficiency / sharing, len(own))[None, :]
        pair = Group(
            num_members=np.full(len(own), 2.0),
            units=np.full(rate.shape, 2.0),
            members=np.ones(rate.shape),
            share_bytes_per_s=rate,
            even_bytes_per_s=rate,
            alone_bytes_per_s=rate,
            latency_s=np.array([[group.between_latency_s + constants.hop_s]]),
        )
        sending = replace(own, pipeline=np.maximum(own.pipeline, 2))  # one stage here has a next one elsewhere
        groups = {**groups_of(self.common.tiers, own), "pipeline": pair}
        times = communication_times(pipeline_communication(self.common.transformer, sending), groups)
        return constants.send_s + _sum_of(own, (one.forward_s for one in times.values()))


def group_seconds(
    transformer: Transformer,
    own: Layouts,
    joint: Layouts,
    group: DeviceGroup,
    *,
    software: Software,
    constants: Constants,
    expert_imbalance: float = 1.0,
) -> GroupSeconds:
    """Return what a micro-batch takes on one group.

    Parameters
    ----------
    transformer
        The network.
    own
        What stands on this group: its own number of stages and of data ranks, at least 1 each.
    joint
        The same with the data ranks of all groups.
    group
        Its devices, and how they are joined.
    software, constants, expert_imbalance
        As for :func:`iteration_times`.
    """
    common = _common_of(transformer, group.tiers, group.rates, software, constants, expert_imbalance)
    interval, counts = _intervals(common, own), _counts(transformer)
    layer = {name: interval[name] / counts for name in LAYER_PARTS}
    return GroupSeconds(
        layer=layer,
        layer_forward_s=_sum_of(own, layer.values())
        * interval["forward"]
        / (interval["compute"] + interval["recompute"]),
        computed_forward_s=interval["forward"] / counts,
        embedding_s=interval["embedding"],
        head_s=interval["head"],
        embedding_forward_s=interval["embedding_forward"],
        head_forward_s=interval["head_forward"],
        transfer_s=interval["transfer"],
        common=common,
        group=group,
        own=own,
        joint=joint,
    )


def least_behind_s(group: GroupSeconds, layouts: Layouts, *, hides: bool) -> Floats:
    """Return seconds that some stage of any cut on one group takes at least behind its schedule; shape (n,).

    What nothing hides of replicas' communication, without latencies, and the optimiser without whole matrices are
    convex in the layers of a stage: the most of all stages is no less than that of a stage with the mean of all layers.

    Parameters
    ----------
    group, layouts
        Of :func:`group_seconds`, and what it is of.
    hides
        Whether communication is beside the seconds of layers; else beside as many as it takes.
    """
    common, network, counts = group.common, group.common.transformer, _counts(group.common.transformer)
    mean = counts / layouts.pipeline
    three = replace(layouts, pipeline=np.full(len(layouts), 3))  # the second one has neither end
    rows = np.stack([0 * mean, mean], axis=1)
    *spread, _ = replica_communication(network, three, common.reduction, layers=rows)
    groups = {one.group: replace(group.groups[one.group], latency_s=np.zeros((1, 1))) for one in spread}
    times = [*replica_times(spread, groups).values()]
    reduced, gathered = (sum((one[way] for one in times), np.zeros((1, 1)))[-1] for way in (0, 1))
    ahead, whole = ((mean * one).sum(axis=0) for one in (group.computed_forward_s, group.layer_s))
    if not hides:
        ahead, whole = np.maximum(ahead, gathered), np.maximum(ahead, gathered) + np.maximum(whole - ahead, reduced)
    shown = _behind_s(common, layouts, (reduced, gathered), ahead, whole)
    moved = _optimizer_bytes(network, common.software, layouts, mean[:, None], np.zeros((1, 1), dtype=bool))
    return np.asarray(sum(shown) + move_s(moved[0], group.group.rates))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaClass:
    """Equal replicas: on which group each stage lies (an index, shape (p, n)), and the micro-batches of one step."""

    groups: Ints
    num_microbatches: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A 1F1B step of n layouts, whatever their cuts and groups.

    Arrays that depend on the stage have it first, shape (p, n); stages that a layout does not have stand behind its
    last one, with 0 layers.

    Attributes
    ----------
    layouts
        Degrees, ZeRO stage (0 or 1), recomputation and overlaps; ``data`` of all classes together, ``pipeline`` of all
        stages.
    layers
        Of each stage, shape (p, n).
    groups
        Seconds by machine group.
    classes
        Of replicas.
    """

    layouts: Layouts
    layers: Ints
    groups: Sequence[GroupSeconds]
    classes: Sequence[ReplicaClass]

    @property
    def _common(self) -> _Common:
        """What all groups share, of the first."""
        return self.groups[0].common

    @cached_property
    def kinds(self) -> Ints:
        """Layers of each stage by kind, shape (kinds, p, n)."""
        return layers_by_kind(self._common.transformer, self.layers)

    @cached_property
    def is_there(self) -> Bools:
        """Whether a layout has a stage."""
        return np.asarray(np.arange(len(self.layers))[:, None] < self.layouts.pipeline)

    @cached_property
    def _is_last(self) -> Bools:
        """Whether a stage is a layout's last one."""
        return np.asarray(np.arange(len(self.layers))[:, None] == self.layouts.pipeline - 1)

    @cached_property
    def _is_first(self) -> Bools:
        """Whether a stage is the first."""
        return np.asarray((np.arange(len(self.layers)) == 0)[:, None])

    def of_group(self, one: ReplicaClass, name: str) -> Floats:
        """Return a figure of the group on which each stage of a class lies, shape (p, n); of layers (kinds, p, n).

        Parameters
        ----------
        one, name
            The class, and a field of :class:`GroupSeconds`.
        """
        figures = [np.asarray(getattr(group, name)) for group in self.groups]
        table = np.array([np.broadcast_to(one, (*one.shape[:-1], len(self.layouts))) for one in figures])
        if table.ndim == 2:
            return np.asarray(np.take_along_axis(table, one.groups, axis=0))
        return np.asarray(np.take_along_axis(table.swapaxes(0, 1), one.groups[None], axis=1))

    def ends_s(self, one: ReplicaClass, way: str = "") -> Floats:
        """Return what embedding and head take on each stage of a class, shape (p, n).

        Parameters
        ----------
        one
            The class.
        way
            Nothing for both ways, or ``_forward``.
        """
        first, last = self.of_group(one, f"embedding{way}_s"), self.of_group(one, f"head{way}_s")
        return np.asarray(self._is_first * first + self._is_last * last)

    def sends_s(self, one: ReplicaClass) -> tuple[Floats, Floats]:
        """Return how long each stage of a class sends: its output forward, and the error back; both of shape (p, n).

        Parameters
        ----------
        one
            The class.
        """
        same = self.of_group(one, "transfer_s")
        down = np.zeros(same.shape)
        crosses = one.groups[:-1] != one.groups[1:]
        down[:-1] = same[:-1]
        if crosses.any():
            other = self.of_group(one, "between_s")
            down[:-1] = np.where(crosses, np.maximum(other[:-1], other[1:]), down[:-1])
        down[:-1] *= self.is_there[1:]
        return down, np.concatenate([np.zeros((1, same.shape[1])), down[:-1]])

    def passes_s(self, one: ReplicaClass) -> tuple[Floats, Floats]:
        """Return forward and backward of one micro-batch on each stage of a class, sending included; shape (p, n).

        Parameters
        ----------
        one
            The class.
        """
        ends, ends_ahead, (down, up) = self.ends_s(one), self.ends_s(one, "_forward"), self.sends_s(one)
        ahead, both = ((self.kinds * self.of_group(one, name)).sum(axis=0) for name in ("layer_forward_s", "layer_s"))
        return ahead + ends_ahead + down, both - ahead + ends - ends_ahead + up

    @cached_property
    def class_steps_s(self) -> Floats:
        """Seconds of each class from the first forward to the last backward, shape (classes, n)."""
        return np.array(
            [
                one_forward_one_backward_s(*self.passes_s(one), self.layouts.pipeline, one.num_microbatches)
                for one in self.classes
            ]
        )

    @cached_property
    def bound_s(self) -> Floats:
        """Seconds that the step is not under, without the schedule's recurrence."""
        rows = [path_bound_s(*self.passes_s(one), self.layouts.pipeline, one.num_microbatches) for one in self.classes]
        return np.asarray(np.max(rows, axis=0) + self.tail_s.max(axis=0))

    @cached_property
    def total_s(self) -> Floats:
        """Seconds of the step."""
        return np.asarray(self.class_steps_s.max(axis=0) + self.tail_s.max(axis=0))

    @cached_property
    def tail_s(self) -> Floats:
        """Communication of replicas that nothing hides, and the optimiser, of each stage, shape (p, n)."""
        return np.asarray(self.exposed_s + self.optimizer_s)

    @cached_property
    def exposed_s(self) -> Floats:
        """Seconds of reductions and gathers that nothing hides, the slowest group of each stage, shape (p, n)."""
        common, rows = self._common, []
        *spread, tied = replica_communication(common.transformer, self.layouts, common.reduction, layers=self.kinds)
        tied_s = []
        if np.any(tied.gradient_bytes):  # a tied embedding's gradient is added up by the first and the last stage
            for group in self.groups:
                seconds = replica_times([tied], group.groups)["tied"][0]
                tied_s.append(np.broadcast_to(seconds, len(self.layouts)))
        for one in self.classes:
            exposed = np.zeros(self.layers.shape)
            for index, group in enumerate(self.groups):
                is_here = one.groups == index
                if is_here.any():
                    times = replica_times(spread, group.groups).values()
                    reduced, gathered = (sum((row[way] for row in times), np.zeros(1)) for way in (0, 1))
                    ahead, whole = (_of_stages(self.kinds, by) for by in (group.computed_forward_s, group.layer_s))
                    shown = _behind_s(common, self.layouts, (reduced, gathered), ahead, whole)
                    exposed = np.where(is_here, shown[0] + shown[1], exposed)
            exposed = exposed * self.is_there
            if tied_s:
                last = np.take_along_axis(one.groups, (self.layouts.pipeline - 1)[None, :], axis=0)
                both = [np.take_along_axis(np.array(tied_s), end, axis=0)[0] for end in (one.groups[:1], last)]
                exposed = exposed + (self._is_first | self._is_last) * np.maximum(*both)
            rows.append(exposed)
        return np.asarray(np.max(rows, axis=0))

    @cached_property
    def optimizer_s(self) -> Floats:
        """Seconds of the optimiser's step on each stage, on its slowest group, shape (p, n)."""
        network, has_end = self._common.transformer, self._is_first | self._is_last
        moved = _optimizer_bytes(network, self._common.software, self.layouts, self.kinds, has_end)
        slowest = np.zeros(self.layers.shape)
        for one in self.classes:
            for index, group in enumerate(self.groups):
                took = move_s(moved, group.group.rates)
                took = took + _matrices_s(self._common, group.common.rates, self.layouts, self.kinds)
                slowest = np.where(one.groups == index, np.maximum(slowest, took), slowest)
        return np.asarray(slowest * self.is_there)

    def parts(self) -> dict[str, Floats]:
        """Return the seconds of the step by part, which sum to the total.

        Parts of computing are those of the slowest stage of the longest class; ``bubble`` is what the schedule takes
        beyond them.
        """
        columns = np.arange(len(self.layouts))
        longest, rows = np.argmax(self.class_steps_s, axis=0), []
        for one in self.classes:
            (forward, backward), (down, up) = self.passes_s(one), self.sends_s(one)
            stage, number = np.argmax(forward + backward, axis=0), one.num_microbatches
            group, layers = one.groups[stage, columns], self.kinds[:, stage, columns]
            row = {}
            for name in LAYER_PARTS:
                table = np.array([each.layer[name] for each in self.groups])
                row[name] = (number * layers * table[group, :, columns].T).sum(axis=0)
            row["compute"] = row["compute"] + number * self.ends_s(one)[stage, columns]
            row["pipeline"] = number * (down + up)[stage, columns]
            rows.append(row)
        parts = {name: np.array([row[name] for row in rows])[longest, columns] for name in rows[0]}
        busy = _sum_of(self.layouts, parts.values())
        parts["bubble"] = np.maximum(self.class_steps_s[longest, columns] - busy, 0.0)
        slowest = np.argmax(self.tail_s, axis=0)
        parts["data"], parts["optimizer"] = self.exposed_s[slowest, columns], self.optimizer_s[slowest, columns]
        return parts


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
    reached = rates.under(software)
    forward_s, backward_s = np.zeros((2, len(together), len(dnn.layers)))

    def share_out(layers: slice, ahead_s: Floats, back_s: Floats) -> None:
        """Add the seconds of some layers by their multiply-adds; all to the last one where none has any."""
        work = np.array([one.num_multiply_adds for one in dnn.layers[layers]], dtype=float)
        if not work.any():
            work[-1] = 1.0
        forward_s[:, layers] += ahead_s[:, None] * (work / work.sum())
        backward_s[:, layers] += back_s[:, None] * (work / work.sum())

    for one in repeats:
        layer = layer_seconds(network, one.kind, layouts, rates=reached, software=software, constants=constants)
        end = one.first + one.num_layers * one.count
        for start in range(one.first, end, one.num_layers):
            share_out(slice(start, start + one.num_layers), layer.forward_s, layer.backward_s)
    last = repeats[-1].first + repeats[-1].num_layers * repeats[-1].count
    entry_s = embedding_s(network, layouts, rates=reached, software=software, constants=constants)
    if network.encoder is not None:
        common = _common_of(network, _ALONE, rates, software, constants, 1.0)
        entry_s = entry_s + _encoder_s(common, network.encoder, layouts, groups_of(common.tiers, layouts))[0]
    for at, both_s in (
        (slice(0, repeats[0].first), entry_s),
        (slice(last, len(dnn.layers)), head_s(network, layouts, rates=reached, software=software, constants=constants)),
    ):
        if at.start < at.stop:
            ahead = _FORWARD_OF_ENDS["trained"]  # families that read profiles train everything
            share_out(at, both_s * ahead, both_s * (1 - ahead))
    parts = iteration_times(network, layouts, tiers=_ALONE, rates=rates, software=software, constants=constants)
    # What launching and adding up gradients take besides:
    scale = ((parts["compute"] + parts["launch"]) / (forward_s + backward_s).sum(axis=1))[:, None]
    return Profile.of_passes(
        together,
        forward_s * scale,
        backward_s * scale,
        update_s=float(parts["optimizer"][0]) if update_s is None else update_s,
        origin=f"fitted rooflines of {rates.name}",
    )


# -- programs ----------------------------------------------------------------------------------------------------------

MEGATRON_CORE, PRIMUS = "megatron-core", "primus"
CORES = (MEGATRON_CORE, PRIMUS)  # whose ranks and options are those of Megatron-Core
_WHOLE_MASTER = Precision(weight_bytes=2, gradient_bytes=10, activation_bytes=2, master_bytes=0, optimizer_bytes=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program keeps, and what it has.

    ``has``: decisions of :class:`planner.models.layouts.Layouts` that are on in it unless they are turned off; of the
    overlaps it can have no others. ``bf16_gradients``: what it keeps where it is asked to keep and reduce gradients in
    bf16; None: it has no such option. ``cuts_experts``: whether experts are cut as all else is, unless told otherwise.
    ``low_recipes``: in which types and recipes it multiplies short numbers
    (:data:`planner.models.low_precision.NUMBER_TYPES`); ``keeps_low``: whether it then keeps weights and what products
    read in them, too; ``gathers_low``: whether ranks gather them.
    ``has_cuda_graphs``: whether it captures a step's kernels.
    ``recomputes_modules``: whether it computes modules of a layer again by themselves, or some layers of a stage only.
    ``offloads_activations``: whether some layers' activations may wait in host memory.
    ``context_methods``: by which context ranks may see keys and values.
    ``schedules``: those that it runs beside GPipe and 1F1B, by name; a search takes no others unless one is pinned.
    ``shards_partly``: whether ZeRO may share out states over a part of the data ranks (Megatron-Core
    ``--num-distributed-optimizer-instances``, PyTorch's HYBRID_SHARD). ``gathers_in_stages``: whether it has ZeRO 3 in
    a pipeline.
    """

    kernels: Kernels
    precision: Precision
    has: frozenset[str] = frozenset()
    bf16_gradients: Precision | None = None
    cuts_experts: bool = True
    low_recipes: frozenset[tuple[str, str]] = frozenset()
    keeps_low: bool = False
    gathers_low: bool = True
    has_cuda_graphs: bool = False
    recomputes_modules: bool = False
    offloads_activations: bool = False
    context_methods: tuple[ContextMethod, ...] = (ContextMethod.RING,)
    schedules: frozenset[str] = frozenset()
    shards_partly: bool = False
    gathers_in_stages: bool = False

    def in_type(self, low: NumberType | None) -> "Program":
        """Return what it keeps where products are of shorter numbers; itself without, or where it keeps two bytes.

        Parameters
        ----------
        low
            How numbers are kept.
        """
        if low is None or not self.keeps_low:
            return self
        wide = self.bf16_gradients
        return replace(
            self,
            precision=replace(self.precision, weight_bytes=low.kept_weight_bytes),
            bf16_gradients=None if wide is None else replace(wide, weight_bytes=low.kept_weight_bytes),
            kernels=replace(self.kernels, product_input_bytes=low.element_bytes),
        )


_OLD = KERNELS["megatron-2021"]
_SHARDED = Program(
    kernels=KERNELS["composer-fsdp"],
    precision=PRECISIONS["fsdp"],
    has=frozenset({"overlap_data", "zero"}),
    shards_partly=True,
)
_TITAN = replace(
    _SHARDED,
    schedules=frozenset({"zb_v", "dualpipe_v"}),  # of torch.distributed.pipelining: ZBVZeroBubble, DualPipeV
    kernels=KERNELS["torchtitan"],
    has=_SHARDED.has | {"sequence_parallel"},
    cuts_experts=False,
    gathers_in_stages=True,
    # torchao's converters ``float8`` and ``mx`` of its configuration, which keep what is read in two bytes, and gather
    # it so: with one scale for a row ranks share no scale (torchtitan, docs/float8.md).
    low_recipes=frozenset({("fp8", "current"), ("mxfp8", "mxfp8")}),
    gathers_low=False,
)
_CORE = Program(
    kernels=KERNELS["megatron-core"],
    precision=PRECISIONS["megatron"],
    has=frozenset({"sequence_parallel", "overlap_tensor", "overlap_data", "overlap_expert", "zero"}),
    bf16_gradients=PRECISIONS["megatron-bf16-gradients"],
    # Transformer Engine: ``--fp8-recipe``, ``--fp4-recipe``, ``--fp8-param-gather``; ``--cuda-graph-impl``.
    low_recipes=frozenset(NUMBER_TYPES),
    keeps_low=True,
    has_cuda_graphs=True,
    recomputes_modules=True,
    offloads_activations=True,
    context_methods=tuple(ContextMethod),
    shards_partly=True,
)
PROGRAMS: Mapping[str, Program] = {
    MEGATRON_CORE: _CORE,
    # AMD's, around Megatron-Core: ``patch_zero_bubble`` and ``zero_bubble_v_schedule_mem_setup``.
    PRIMUS: replace(_CORE, schedules=frozenset({"zb_h1", "zb_h2", "zb_v", "v_half", "v_min"})),
    "megatron-lm": Program(kernels=_OLD, precision=PRECISIONS["mixed"]),
    "megatron-lm-fused": Program(kernels=_OLD, precision=PRECISIONS["megatron"]),
    "megatron-deepspeed": Program(
        kernels=KERNELS["megatron-deepspeed"], precision=PRECISIONS["mixed"], has=frozenset({"zero"})
    ),
    "megatron-deepspeed-bf16": Program(kernels=_OLD, precision=_WHOLE_MASTER, has=frozenset({"zero"})),
    "composer-fsdp": _SHARDED,
    "torchtitan": replace(_TITAN, has=_TITAN.has | {"overlap_tensor"}),
    "torchtitan-eager": replace(_TITAN, kernels=KERNELS["torchtitan-eager"]),
    "nanotron": Program(
        kernels=KERNELS["nanotron"],
        precision=replace(PRECISIONS["megatron"], gradient_bytes=6),
        has=frozenset({"sequence_parallel", "overlap_tensor", "overlap_data", "zero"}),
    ),
}
