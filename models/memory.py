"""Bytes on one device: of a transformer under any layout, stage by stage; and the terms that any network has.

Networks in general: :mod:`planner.models.activations`; what one layer of a transformer keeps for its backward pass:
:mod:`planner.models.layer_memory`.

**A stage.** It holds

- ``weights``, ``gradients`` and ``optimizer`` (fp32 copy and moments) of its layers; the first stage those of the
  embedding, the last one those of the head. ZeRO 1, 2 and 3 shards the optimiser, the gradients too, the weights too,
  over ``data x context`` devices, experts over ``data x context / expert`` (S. Rajbhandari et al., SC20, arXiv
  1910.02054, section 5: 16, 4 + 12/d, 2 + 14/d and 16/d bytes a parameter); stages of a pipeline hold gradients and
  weights whole;
- ``activations`` of all micro-batches in flight (:mod:`planner.models.layouts`), layer by layer, with the embedding's
  and an encoder's on the first stage, and the last norm's and the logits' on the last one;
- ``temporary``: the larger of what one layer's backward pass needs beside that (full recomputation: all that a layer
  keeps) with the gradient of its largest matrix, and what the head's needs (gradients of the logits' matrix and of the
  stream, which sequence parallelism gathers there; copies of the logits); with ZeRO 2 and 3 the whole gradient of a
  layer, with ZeRO 3 the whole weights of the layer at work and, where communication overlaps computing, of the next;
  where a stage has experts, the buffer to which all expert-parallel ranks send their tokens;
- of activations that wait in host memory none, but for one layer's on their way, which are ``temporary``, too
  (:mod:`planner.models.offload`);
- ``reserve``: what is not modelled, given by the caller: the device's context, buffers of the communication library,
  kernels' workspaces, fragmentation, images and token numbers.

Moments of the maximum differ between the terms; they are added, which is exact for the largest ones.

**Any cut.** With q micro-batches in flight a stage of n layers of one kind holds ``base + n (states + q kept)``:
exactly a line, since all but the layers' states and activations does not grow with them; with layers of several kinds a
plane, whose ``base`` follows from which kinds there are.

**Optimiser on the host.** Gradients go down over the device's link and updated weights come back, both as they are
communicated; the processor then moves the optimiser's state through its memory, which the devices of a machine share.
Transfers and update follow one another (J. Ren et al., ZeRO-Offload, arXiv 2101.06840, sections 4 and 5). Leaves out a
step that is delayed by one iteration (their section 5.2), and reads of the host's memory by the input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, reduce
from math import inf

import numpy as np

from planner.cost import Floats
from planner.frozen import frozen
from planner.models.known import Known
from planner.models.layer_memory import LOSS_COPY_BYTES, Kernels, LayerBytes, kept_elements, layer_bytes
from planner.models.layouts import (
    ContextMethod,
    Ints,
    Layouts,
    Recompute,
    Stage,
    chunk_in_flight,
    every_stage,
    fullest_counts,
    fullest_layers,
    fullest_stages,
    layers_before,
    layers_by_kind,
)
from planner.models.offload import offloaded_share
from planner.models.operators import (
    embedding_operators,
    head_operators,
)
from planner.models.optimizers import OPTIMIZERS
from planner.models.parameters import (
    FROZEN_BYTES,
    Parameters,
    block_parameters,
    embedding_parameters,
    encoder_layouts,
    encoder_parameters,
    frozen_bytes,
    head_parameters,
    trained_parameters,
    trained_stage_parameters,
    vocabulary_rows,
)
from planner.trained import EMBEDDING, HEAD
from planner.transformer import KINDS, LayerKind, Transformer

STATISTIC_BYTES = 4  # batch-norm statistics stay in fp32
# State per parameter beyond the weight; of Muon, whose embedding keeps more, as much as that.
OPTIMIZER_BYTES = {name: max(one.state_bytes, one.end_state_bytes) for name, one in OPTIMIZERS.items()}


@frozen
class Precision:
    """Bytes of one number: as weight, as gradient, as activation; master copy and optimiser state per parameter.

    Mixed precision keeps 2 + 2 + 4 + 8 = 16 bytes a parameter with Adam (S. Rajbhandari et al., SC20,
    arXiv:1910.02054); fp32 keeps 4 + 4 + 0 + 8. ``widened_bytes``: of the copy of a gradient in another type that an
    optimiser of ZeRO 0, 2 and 3 makes for its step. ``spared_bytes``: of the master copy, what one of ZeRO 1 or
    of one rank reads off the weight where nothing is offloaded. ``end_bytes``: of state that embedding and head keep
    more than other parameters. ``has_whole_matrices``: ranks that share state take whole matrices. ``gathers_weights``:
    with ZeRO 1 and 2, too, a rank keeps its shard of weights alone, and what all gather of them in the type of
    activations until their backward pass (FSDP2 with ``reshard_after_forward=False``; FSDP's SHARD_GRAD_OP).
    """

    weight_bytes: int
    gradient_bytes: int
    activation_bytes: int
    master_bytes: int
    optimizer_bytes: float
    widened_bytes: int = 0
    spared_bytes: int = 0
    end_bytes: float = 0.0
    has_whole_matrices: bool = False
    gathers_weights: bool = False

    @property
    def kept_bytes(self) -> float:
        """Of master copy and optimiser's state."""
        return self.master_bytes + self.optimizer_bytes

    @classmethod
    def of(cls, dtype: str, optimizer: str) -> "Precision":
        """Return the precision of a data type and an optimiser.

        Parameters
        ----------
        dtype
            fp32 or tf32; fp16 or bf16 for mixed precision.
        optimizer
            A key of :data:`OPTIMIZER_BYTES`.
        """
        is_mixed = dtype in ("fp16", "bf16")
        size = 2 if is_mixed else 4
        return cls(
            weight_bytes=size,
            gradient_bytes=size,
            activation_bytes=size,
            master_bytes=4 if is_mixed else 0,
            optimizer_bytes=OPTIMIZER_BYTES[optimizer],
        )


@frozen
class MemoryUse:
    """Bytes on one device; ``activations_per_sample_bytes`` is multiplied by the samples in flight."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: float
    activations_per_sample_bytes: int
    reserve_bytes: float

    @property
    def fixed_bytes(self) -> float:
        """What is there whatever the batch."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.reserve_bytes

    def total_bytes(self, num_samples: int) -> float:
        """Return the bytes with some samples in flight.

        Parameters
        ----------
        num_samples
            Whose activations are kept at a time.
        """
        return self.fixed_bytes + num_samples * self.activations_per_sample_bytes

    def terms_bytes(self, num_samples: int, *, limit_bytes: float) -> dict[str, float]:
        """Return every term with some samples in flight, their total, and what a device may hold.

        Parameters
        ----------
        num_samples
            Whose activations are kept at a time.
        limit_bytes
            The device's own; reported as ``limit``.
        """
        terms: dict[str, float] = {
            "weights": self.weights_bytes,
            "gradients": self.gradients_bytes,
            "optimizer": self.optimizer_bytes,
            "activations": self.activations_per_sample_bytes * num_samples,
            "reserve": self.reserve_bytes,
        }
        return {**terms, "total": sum(terms.values()), "limit": limit_bytes}

    def most_samples(self, limit_bytes: float) -> int:
        """Return how many samples fit at a time; 0 where not even one does, 2**62 where any number does.

        Parameters
        ----------
        limit_bytes
            What a device may hold; may be infinite.
        """
        if self.total_bytes(1) > limit_bytes:
            return 0
        if not self.activations_per_sample_bytes or limit_bytes == inf:
            return 2**62
        return int((limit_bytes - self.fixed_bytes) // self.activations_per_sample_bytes)


# -- every pipeline stage ----------------------------------------------------------------------------------------------

TERMS = ("weights", "gradients", "optimizer", "activations", "temporary", "reserve")
# Decisions that change no bytes, but for modules and a method as :func:`_holding` has them.
_HOLDING_NOTHING = ("order", "overlap_tensor", "context_method", "recompute_modules")

# Bytes of a weight, its gradient, an activation, the fp32 copy, and Adam's moments.
PRECISIONS: Mapping[str, Precision] = {
    # 16 bytes: gradients in half precision (Rajbhandari et al., section 3.1).
    "mixed": Precision(weight_bytes=2, gradient_bytes=2, activation_bytes=2, master_bytes=4, optimizer_bytes=8),
    # 18 bytes: gradients summed in fp32 (Megatron-LM with bf16; Korthikanti et al., figure 1).
    "megatron": Precision(weight_bytes=2, gradient_bytes=4, activation_bytes=2, master_bytes=4, optimizer_bytes=8),
    # The same with ``--grad-reduce-in-bf16``. The distributed optimiser reads them as they are, told so
    # (``--use-precision-aware-optimizer``), and of a weight's master copy keeps the two bytes that the weight has not
    # (``store_param_remainders``, on unless told otherwise); others widen gradients
    # (``_copy_model_grads_to_main_grads`` of Megatron-Core).
    "megatron-bf16-gradients": Precision(
        weight_bytes=2,
        gradient_bytes=2,
        activation_bytes=2,
        master_bytes=4,
        optimizer_bytes=8,
        widened_bytes=4,
        spared_bytes=2,
    ),
    # Gradients in fp32, with fp8 copies of every weight, as it is and transposed (Transformer Engine).
    "megatron-fp8": Precision(weight_bytes=4, gradient_bytes=4, activation_bytes=2, master_bytes=4, optimizer_bytes=8),
    # Weights and gradients are kept in fp32 and computed with in bf16 (PyTorch's fully sharded data parallel).
    "fsdp": Precision(
        weight_bytes=4, gradient_bytes=4, activation_bytes=2, master_bytes=0, optimizer_bytes=8, gathers_weights=True
    ),
    "fp32": Precision(weight_bytes=4, gradient_bytes=4, activation_bytes=4, master_bytes=0, optimizer_bytes=8),
}


_SHARDS_WEIGHTS = 3  # the stage of ZeRO that does
_FEW_STAGES = (8, 32, 128)  # that one of is a layout's fullest
_FEWER_STAGES = 2  # times as few as there are moments, where each stage's fullest one is looked for first
_MOST_TOGETHER = 1 << 13  # stages of all layouts in one array: they stay in the processor's cache


def memory_bytes(
    transformer: Transformer,
    layouts: Layouts,
    *,
    precision: Precision,
    kernels: Kernels | None = None,
    reserve_bytes: float = 0.0,
    pipeline_layers: Sequence[int] | None = None,
    expert_imbalance: float = 1.0,
) -> Mapping[str, Floats]:
    """Return the bytes of every layout's fullest stage.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    precision
        E.g. one of :data:`PRECISIONS`.
    kernels
        What the software keeps; by default that of today's frameworks.
    reserve_bytes
        On every device, for what is not modelled.
    pipeline_layers
        Layers of every stage, or of every virtual stage in the order of the network, where they are not dealt out
        evenly; all layouts then have that many.
    expert_imbalance
        Tokens of the busiest device's experts over the mean.

    Returns
    -------
    The terms :data:`TERMS`, and ``total``, their sum; arrays of shape (n,).
    """
    kernels, names = kernels or Kernels(), (*TERMS, "total")
    if pipeline_layers is not None:
        return _fullest_bytes(
            transformer, layouts, precision, kernels, reserve_bytes, expert_imbalance, tuple(pipeline_layers)
        )

    def worked_out(places: Ints) -> Floats:
        some = layouts.of(places)
        found = _fullest_bytes(transformer, some, precision, kernels, reserve_bytes, expert_imbalance)
        return np.array([found[name] for name in names])

    known = _known_memory(transformer, precision, kernels, reserve_bytes, expert_imbalance)
    rows = known.fullest.of(_holding(layouts), worked_out)
    return dict(zip(names, rows, strict=True))


def _holding(layouts: Layouts) -> Sequence[Ints]:
    """Return all numbers of layouts on which any bytes depend, of shape (n,)."""
    arrays = layouts.arrays()
    modules = np.where(layouts.recompute == Recompute.SELECTIVE, layouts.recompute_modules, 0)
    gathers = (layouts.context > 1) & (layouts.context_method == ContextMethod.ALL_GATHER)  # as other methods do not
    numbers = [arrays[name] for name in arrays if name not in _HOLDING_NOTHING]
    return np.broadcast_arrays(*numbers, modules, gathers, np.zeros(len(layouts), dtype=bool))


@frozen(kw_only=False)
class _KnownMemory:
    """What is known of some network's memory: of layouts' fullest stages, and of all stages as lines."""

    fullest: Known = field(default_factory=Known)
    lines: Known = field(default_factory=Known)


@lru_cache(maxsize=8)
def _known_memory(
    transformer: Transformer, precision: Precision, kernels: Kernels, reserve_bytes: float, expert_imbalance: float
) -> _KnownMemory:  # keys of the cache
    return _KnownMemory()


def _fullest_bytes(
    transformer: Transformer,
    layouts: Layouts,
    precision: Precision,
    kernels: Kernels,
    reserve_bytes: float,
    expert_imbalance: float,
    pipeline_layers: tuple[int, ...] | None = None,
) -> Mapping[str, Floats]:
    """Return the bytes of every layout's fullest stage, as :func:`memory_bytes` does."""
    # Those with few stages to look at are looked at by themselves: of layers of several kinds some have hundreds.
    counts = fullest_counts(transformer, layouts, pipeline_layers)
    is_small = len(layouts) * int(counts.max(initial=0)) <= _MOST_TOGETHER  # whose calls take longer than their work
    classes = np.zeros_like(counts) if is_small else np.searchsorted(_FEW_STAGES, counts)
    found = {name: np.empty(len(layouts)) for name in (*TERMS, "total")}
    for one in np.unique(classes).tolist():
        rows = np.flatnonzero(classes == one)
        few = layouts.of(rows)
        devices = _Devices(transformer, few, precision, kernels, reserve_bytes, expert_imbalance)
        part = _of_fullest(devices, devices.at_most(fullest_stages(transformer, few, pipeline_layers)))
        for name, column in found.items():
            column[rows] = part[name]
    return found


def _of_fullest(devices: "_Devices", stages: Stage) -> Mapping[str, Floats]:
    """Return the terms of the fullest of the stages of every layout, and their total."""
    best = dict[str, Floats]()
    number, size = stages.index.shape
    columns = np.arange(size)
    for start in range(0, number, together := max(1, _MOST_TOGETHER // size)):
        some = devices.terms(stages.of_rows(slice(start, start + together)))
        at = (np.argmax(some["total"], axis=0), columns)
        fullest = {name: array[at] for name, array in some.items()}
        is_fuller = fullest["total"] > best.get("total", -1.0)
        best = {name: np.where(is_fuller, array, best.get(name, array)) for name, array in fullest.items()}
    return best


def stage_memory_bytes(
    transformer: Transformer,
    layout: Layouts,
    *,
    precision: Precision,
    kernels: Kernels | None = None,
    reserve_bytes: float = 0.0,
    pipeline_layers: Sequence[int] | None = None,
    expert_imbalance: float = 1.0,
) -> Mapping[str, Floats]:
    """Return the same of every stage of one layout; arrays of shape (stages,).

    Parameters
    ----------
    transformer, layout
        The network, and a single layout of it.
    precision, kernels, reserve_bytes, pipeline_layers, expert_imbalance
        As for :func:`memory_bytes`.
    """
    repeated, stage = every_stage(transformer, layout, pipeline_layers)
    moments = _Devices(transformer, repeated, precision, kernels or Kernels(), reserve_bytes, expert_imbalance).terms(
        stage
    )
    # Of the moments of a stage the fullest: sorted by stage and then by bytes, it is the last one.
    order = np.lexsort((moments["total"], stage.index))
    last = order[np.flatnonzero(np.diff(stage.index[order], append=-1))]
    return {name: array[last] for name, array in moments.items()}


def _held_zero(layouts: Layouts) -> Ints:
    """Return the stage of ZeRO by which a device holds states: in a pipeline no more than 1.

    FSDP2 reduces gradients behind a pipeline's last backward pass, and holds them whole until then, in the type in
    which it reduces them. Nor does a backward pass free the weights that it has gathered, which ZeRO 3 then frees in
    the next forward pass alone: all of a stage's are there once in every micro-batch (``backward_maybe_with_nosync`` of
    ``torch/distributed/pipelining/stage.py``, PyTorch 2.13).
    """
    return np.where(layouts.pipeline > 1, np.minimum(layouts.zero, 1), layouts.zero)


class _Devices:
    """What a device of any stage holds; what does not depend on the stage is computed once."""

    def __init__(
        self,
        transformer: Transformer,
        layouts: Layouts,
        precision: Precision,
        kernels: Kernels,
        reserve_bytes: float,
        expert_imbalance: float,
    ) -> None:
        self._layouts, self._precision, self._kernels = layouts, precision, kernels
        self._reserve_bytes = reserve_bytes
        number = precision.activation_bytes
        self._is_frozen = not all(one.trained.is_all for one in (transformer, transformer.encoder) if one is not None)
        self._layers: dict[LayerKind, tuple[Parameters, Parameters, tuple[Floats, Floats], LayerBytes]] = {}
        for kind in transformer.kind_counts:
            held = block_parameters(transformer, kind, layouts)
            self._layers[kind] = (
                held,
                trained_parameters(transformer, kind, layouts) if self._is_frozen else held,
                frozen_bytes(transformer, kind, layouts),
                layer_bytes(
                    transformer,
                    kind,
                    layouts,
                    activation_bytes=number,
                    kernels=kernels,
                    expert_imbalance=expert_imbalance,
                ),
            )
        self._embedding = self._gathered_embedding = embedding_parameters(transformer, layouts)
        self._head = head_parameters(transformer, layouts)
        self._embedding_trained = embedding_parameters(transformer, layouts, is_trained=True)
        self._head_trained = head_parameters(transformer, layouts, is_trained=True)
        samples, stream = layouts.microbatch / layouts.context, transformer.hidden_size * transformer.sequence_length
        # The embedding keeps the input of its norm, patches, and the mask of dropout; the head what is before logits.
        embedding, head = (
            sum(one.stream for one in kept_elements(transformer, operators)) * number
            for operators in (embedding_operators(transformer), head_operators(transformer))
        )
        rows = vocabulary_rows(transformer, layouts)
        has_logits = transformer.head in ("language", "masked_language")
        logits = has_logits * samples * transformer.sequence_length * rows
        is_fused = kernels.is_loss_fused
        self._embedding_kept = (embedding + kernels.has_dropout * stream) * samples / layouts.stream_split
        self._embedding_kept = self._embedding_kept * (transformer.learning_of(EMBEDDING) != "front")
        self._head_kept = head * samples / layouts.stream_split + (number if is_fused else LOSS_COPY_BYTES) * logits
        # Its backward pass needs the gradients of logits, of their matrix, and of the stream, which is gathered there.
        gathered = np.where(layouts.stream_split > 1, 2, 1) * number * stream * samples
        copies = max(number + LOSS_COPY_BYTES, (kernels.num_loss_copies - 1) * LOSS_COPY_BYTES)
        loss = 0.0 if is_fused else copies * logits
        matrix = 0.0 if transformer.has_frozen_logits else number * rows * transformer.hidden_size
        self._head_working = matrix + gathered + loss
        # Tokens of all ranks that share experts, as wide as they are sent.
        sent = samples * transformer.sequence_length * transformer.routed_width / layouts.stream_split * layouts.expert
        self._dispatched = kernels.dispatch_bytes * sent * (layouts.expert > 1) * (transformer.experts is not None)
        # Of an encoder's layer: bytes for a moment; parameters, all and those that are trained; and trained matrices.
        self._encoder_needs: tuple[Floats, Floats, Floats, Floats] = (np.zeros(1),) * 4
        if transformer.encoder is not None:
            self._add_encoder(transformer, transformer.encoder)

    def _add_encoder(self, network: Transformer, encoder: Transformer) -> None:
        """Add what an encoder keeps to what the embedding does; the largest that one of its layers needs besides.

        ZeRO 3 gathers its layers one by one.
        """
        own, number, kernels = encoder_layouts(network, self._layouts), self._precision.activation_bytes, self._kernels
        self._gathered_embedding = self._embedding - encoder_parameters(network, self._layouts)
        kept: Floats = np.zeros(1)
        for kind, count in encoder.kind_counts.items():
            layer = layer_bytes(encoder, kind, own, activation_bytes=number, kernels=kernels)
            held, trained = block_parameters(encoder, kind, own), trained_parameters(encoder, kind, own)
            kept = kept + count * layer.kept
            gradient = number * trained.largest * (not kernels.has_placeholders)
            working, block, trained_block, matrices = self._encoder_needs
            self._encoder_needs = (
                np.maximum(working, layer.working + gradient),
                np.maximum(block, held.all),
                np.maximum(trained_block, trained.all),
                np.maximum(matrices, trained.matrices),
            )
        for part, operators in ((EMBEDDING, embedding_operators(encoder)), (HEAD, head_operators(encoder))):
            if encoder.learning_of(part) != "front":
                kept = kept + sum(one.stream for one in kept_elements(encoder, operators)) * number * own.microbatch
        self._embedding_kept = self._embedding_kept + kept

    def at_most(self, stages: Stage) -> Stage:
        """Return the stages of every layout, shape (r, n), each at one of its moments: of most activations.

        All else that it holds is the same at any of them, which follow each other.
        """
        number, size = stages.index.shape
        is_new = np.ones((size, number), dtype=bool)
        is_new[:, 1:] = (np.diff(stages.index, axis=0) != 0).T
        is_new[:, 1:] |= (np.diff(stages.layers, axis=1) != 0).any(axis=0).T
        counts = is_new.sum(axis=1)
        if counts.max(initial=1) * _FEWER_STAGES > number:
            return stages
        held, starts = self._activations(stages).T.ravel(), np.flatnonzero(is_new)
        most = np.repeat(np.maximum.reduceat(held, starts), np.diff(starts, append=held.size))
        fullest = np.flatnonzero(held == most)
        fullest = fullest[np.searchsorted(fullest, starts)] % number  # the first moment of each
        place = np.minimum(np.arange(counts.max())[:, None], counts - 1)
        rows = fullest[np.cumsum(counts) - counts + place]
        return Stage(
            index=np.take_along_axis(stages.index, rows, axis=0),
            layers=np.take_along_axis(stages.layers, rows[None], axis=1),
            in_flight=np.take_along_axis(stages.in_flight, rows[None], axis=1),
        )

    def terms(self, stage: Stage) -> dict[str, Floats]:
        """Return the terms of a stage of every layout, or of several, and their total."""
        layouts, precision, size = self._layouts, self._precision, np.shape(stage.index)
        number, zero, has_placeholders = precision.activation_bytes, _held_zero(layouts), self._kernels.has_placeholders
        is_first, is_last = self._ends(stage)
        trained_ends = is_first * self._embedding_trained + is_last * self._head_trained
        shared, routed = trained_ends, np.zeros(1)  # of what is trained
        frozen = FROZEN_BYTES * (is_first * self._embedding + is_last * self._head - trained_ends)
        frozen_routed = np.zeros(1)
        working, block, trained_block, matrices = (is_first * one for one in self._encoder_needs)
        placeholders, transit = number * matrices * has_placeholders, np.zeros(1)
        for (held, trained, frozen_ones, layer), count in zip(self._layers.values(), stage.layers, strict=True):
            is_there = count > 0
            shared, routed = shared + count * trained.shared, routed + count * trained.routed
            if self._is_frozen:
                frozen = frozen + count * frozen_ones[0]
                frozen_routed = frozen_routed + count * frozen_ones[1]
                trained_block = np.maximum(trained_block, is_there * trained.all)
            if layouts.offload_layers.any():  # what has come back, or is not gone yet, is that of one layer more
                share = offloaded_share(layouts, stage.layers.sum(axis=0))
                transit = np.maximum(transit, (share > 0) * is_there * self._kept(layer, stage))
            if layouts.offload_modules.any():
                transit = np.maximum(transit, is_there * layer.away)
            gradient = 0.0 if has_placeholders else number * trained.largest
            working = np.maximum(working, is_there * (layer.working + gradient))
            block = np.maximum(block, is_there * held.all)
            if has_placeholders:
                placeholders = np.maximum(placeholders, is_there * (number * trained.matrices))
        trained_block = trained_block if self._is_frozen else block
        # A micro-batch's logits are gone by the time that its layers run backward.
        moment = np.maximum(
            working - is_last * self._head_kept + self._reduced_bytes(trained_block, is_last * self._head_trained),
            is_last * self._head_working,
        )
        # ZeRO 2 and 3 gather the gradients of the layer at work, ZeRO 3 its weights, and the next one's ahead.
        ends = np.maximum(is_first * self._gathered_embedding, is_last * self._head)
        ahead = np.where(layouts.overlap_data, block, 0.0)
        shards = layouts.sharing_ranks
        gathered = number * ((zero >= 3) * (np.maximum(block, ends) + ahead) + (zero >= 2) * trained_block)
        states = [
            np.where(zero >= least, (shared + routed * layouts.expert_share) / shards, shared + routed)
            for least in (3, 2, 1)
        ]
        is_widened = (zero > 1) | ((zero == 0) & (shards > 1))  # FSDP's, be it of one rank: nothing tells it otherwise
        kept_bytes = precision.kept_bytes - precision.spared_bytes * ~(is_widened | layouts.offload_optimizer)
        optimizer = kept_bytes * states[2]
        if precision.end_bytes:
            optimizer = optimizer + precision.end_bytes * np.where(zero >= 1, trained_ends / shards, trained_ends)
        if precision.has_whole_matrices:  # one rank has the largest
            largest = reduce(np.maximum, [trained.largest for _, trained, _, _ in self._layers.values()])
            optimizer = np.maximum(optimizer, kept_bytes * np.minimum(largest, shared + routed))
        still = np.where(zero >= 3, (frozen + frozen_routed * layouts.expert_share) / shards, frozen + frozen_routed)
        terms = {
            "weights": self._weights_bytes(shared + routed, states) + still,
            "gradients": precision.gradient_bytes * states[1]
            + precision.widened_bytes * is_widened * (1 - layouts.host_share) * states[2],
            "optimizer": optimizer * (1 - layouts.host_share),
            "activations": self._activations(stage),
            "temporary": np.maximum(moment, 0.0)
            + placeholders
            + transit
            + self._dispatch_bytes(stage)
            + np.where(shards > 1, gathered + self._kernels.shard_buffers_bytes * (zero >= 1), 0.0),
            "reserve": np.full(size, float(self._reserve_bytes)),
        }
        terms = {name: np.broadcast_to(terms[name], size) for name in TERMS}
        return {**terms, "total": sum(terms.values(), np.zeros(size))}

    def _kept(self, layer: LayerBytes, stage: Stage) -> Floats:
        """Return what a layer keeps of a micro-batch, where some layers of each virtual stage alone are recomputed."""
        if not self._layouts.recompute_layers.any():
            return layer.kept
        share = self._layouts.recomputed_share(stage.layers.sum(axis=0))
        return np.asarray(share * layer.kept + (1 - share) * layer.whole)

    def _ends(self, stage: Stage) -> tuple[Floats, Floats]:
        """Return 1 where a stage is the first one, and where it is the last; of a V the first device has both ends."""
        return (stage.index == 0) * 1.0, (stage.index == self._end) * 1.0

    @cached_property
    def _end(self) -> Ints:
        """The device that holds the last layers; shape (n,)."""
        return np.where(self._layouts.is_folded, 0, self._layouts.pipeline - 1)

    def _activations(self, stage: Stage) -> Floats:
        """Return what is kept on the device of all micro-batches in flight."""
        layouts, (is_first, is_last) = self._layouts, self._ends(stage)
        first = chunk_in_flight(layouts, np.zeros(1, dtype=np.int64), 0)
        last = chunk_in_flight(layouts, self._end, layouts.interleave - 1)
        found = is_first * first * self._embedding_kept + is_last * last * self._head_kept
        for (_, _, _, layer), in_flight in zip(self._layers.values(), stage.in_flight, strict=True):
            kept = self._kept(layer, stage)
            if layouts.offload_layers.any():
                kept = (1 - offloaded_share(layouts, stage.layers.sum(axis=0))) * kept
            found = found + in_flight * (kept - layer.away)
        return np.asarray(found)

    def _weights_bytes(self, trained: Floats, states: Sequence[Floats]) -> Floats:
        """Return the bytes of trained weights, of numbers in all and those of ZeRO 3, 2 and 1; gathered ones, too."""
        found = self._precision.weight_bytes * states[0]
        if not self._precision.gathers_weights:
            return found
        layouts, zero = self._layouts, _held_zero(self._layouts)
        is_kept = (zero >= 1) & (zero < _SHARDS_WEIGHTS) & (layouts.sharing_ranks > 1)
        whole = self._precision.weight_bytes * states[2] + self._precision.activation_bytes * trained
        return np.where(is_kept, whole, found)

    def _dispatch_bytes(self, stage: Stage) -> Floats:
        """Return the bytes of the buffer to which tokens are sent, on stages with experts."""
        rows = zip(self._layers, stage.layers, strict=True)
        routed = [count > 0 for kind, count in rows if KINDS[kind].feed_forward == "moe"]
        return np.asarray(self._dispatched * np.any(routed, axis=0)) if routed else np.zeros(1)

    def _reduced_bytes(self, trained: Floats, head: Floats) -> Floats:
        """Return the bytes of the copy of gradients that is being reduced: of one layer, or of the head before it."""
        is_shared = (self._layouts.zero >= 1) & (self._layouts.sharing_ranks > 1)
        return np.asarray(self._kernels.reduced_bytes * is_shared * np.maximum(trained, head))


# -- an optimiser on the host ------------------------------------------------------------------------------------------


@frozen
class Host:
    """A machine's host, as one of its devices sees it."""

    link_bytes_per_s: float  # between a device and the host's memory, one direction
    memory_bytes_per_s: float  # what the processor moves through its memory for one device, while it does so for all


def state_parameters(
    transformer: Transformer, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None
) -> Floats:
    """Return the parameters whose optimiser's state a device keeps, of the fullest stage: layers, embedding or head.

    ZeRO of any stage shares out dense ones over data x context devices, experts over the devices that hold copies.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it; the result is of shape (n,).
    chunk_layers
        As for :func:`offload_s`.
    """
    held = trained_stage_parameters(transformer, layouts)
    layers, has_end = fullest_layers(transformer, layouts, chunk_layers)
    shards = np.where(layouts.zero > 0, layouts.sharing_ranks, 1)
    copies = np.where(layouts.zero > 0, shards / layouts.expert_share, 1)
    mean = np.array([*transformer.kind_counts.values()])[:, None] / layouts.pipeline
    dense, experts = ((layers / mean[:, None] * one[:, None]).sum(axis=0) for one in (held.dense, held.experts))
    return np.asarray(((dense + np.where(has_end, held.ends, 0.0)) / shards + experts / copies).max(axis=0))


def offload_s(
    transformer: Transformer,
    layouts: Layouts,
    host: Host,
    *,
    gradient_bytes: float,
    weight_bytes: float,
    optimizer_bytes: float,
    chunk_layers: Sequence[int] | Ints | None = None,
) -> Floats:
    """Return the seconds of an optimiser's step on the host, all of it.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it; the result is of shape (n,).
    host
        As one device sees it.
    gradient_bytes, weight_bytes
        Of one parameter, as it goes down, and as it comes back.
    optimizer_bytes
        That the step moves through memory per parameter.
    chunk_layers
        As for :func:`planner.models.transformer_time.iteration_times`.
    """
    seconds = (gradient_bytes + weight_bytes) / host.link_bytes_per_s + optimizer_bytes / host.memory_bytes_per_s
    return state_parameters(transformer, layouts, chunk_layers) * seconds


# -- stages of any cut in 1F1B -----------------------------------------------------------------------------------------


_MOST_PLACES = 64
_BOTH = 2  # kinds of layers


def _filled(order: Ints, few: Ints, many: Ints, total: Ints) -> Ints:
    """Return layers by kind, shape (kinds, p, n), that add up: a few of each, then as many of the kinds in order."""
    spare, left = (many - few).reshape(-1), total - few.sum(axis=0)
    found, cells = few.reshape(-1).copy(), np.arange(left.size).reshape(left.shape)
    for kind in order:
        at = kind * left.size + cells
        more = np.minimum(left, spare.take(at))
        found[at] += more
        left = left - more
    return found.reshape(few.shape)


@frozen(eq=False)
class _Lines:
    """What a stage holds: a constant, and for each layer of a kind its states, and what it keeps of a micro-batch."""

    # the constant, by place (the first stage, one between, the last) and by what kinds the stage has (1 for the first,
    # plus 2 for the second, and so on), shape (3, 2 ** kinds, n)
    rest: Floats
    # states, kept: by kind, shape (kinds, n)
    states: Floats
    kept: Floats

    def held(
        self, layouts: Layouts, index: Ints, layers: Ints, of_layer: Floats, present: Ints | None = None
    ) -> Floats:
        """Return the bytes of stages at ``index``, with layers by kind, of shape (kinds, p, n).

        ``of_layer``: bytes of a layer. ``present``: layers of those kinds that count for the constant, where they are
        others.
        """
        place = np.where(index == 0, 0, np.where(index == layouts.pipeline - 1, 2, 1))
        code = sum((count > 0) * (1 << kind) for kind, count in enumerate(layers if present is None else present))
        found = self.rest[place, code, np.arange(self.rest.shape[-1])]
        for count, bytes_each in zip(layers, of_layer, strict=True):
            found = found + count * bytes_each
        return np.asarray(found)

    def of_layer(self, in_flight: Ints) -> Floats:
        """Return the bytes of one layer of each kind on stages with micro-batches in flight, shape (kinds, p, n)."""
        return np.asarray(self.states[:, None] + in_flight * self.kept[:, None])


@dataclass(frozen=True, kw_only=True)
class CutMemory:
    """Bytes of the stages of cuts, for many layouts at once; fields as of :func:`memory_bytes`.

    Arrays of shape (p, n): stages first, those that a layout does not have behind its last.
    """

    transformer: Transformer
    precision: Precision
    kernels: Kernels
    reserve_bytes: float
    expert_imbalance: float = 1.0

    def in_flight(self, layouts: Layouts, index: Ints) -> Ints:
        """Return the micro-batches whose activations the layers of stages at ``index`` keep; shape (p, n)."""
        return np.asarray(np.minimum(layouts.num_microbatches, np.maximum(layouts.pipeline - index, 1)))

    def most_layers(self, layouts: Layouts, num_stages: int, limit_bytes: Floats, *, is_certain: bool = False) -> Ints:
        """Return how many layers fit on a device of each stage, shape (p, n); below 1 where not even one.

        Of a network with layers of several kinds: as many as fit of those layers that a stage may hold which need
        least, and so of no cut more; or that need most, so that as many of any do.

        Parameters
        ----------
        layouts
            ``pipeline`` counts all stages; ``num_microbatches`` those of one replica.
        num_stages
            p: of the longest pipeline.
        limit_bytes
            What a device of each stage may hold, shape (p, n).
        is_certain
            Whether the stage may hold those that need most.
        """
        index, lines, layers = np.arange(num_stages)[:, None], self._lines(layouts), len(self.transformer.layer_kinds)
        shape = np.broadcast_shapes(limit_bytes.shape, (num_stages, len(layouts)))
        few, many = self._windows
        place, number = np.minimum(index, few.shape[1] - 1), len(few)
        of_layer, limit_bytes = lines.of_layer(self.in_flight(layouts, index)), limit_bytes * (1 + 1e-12)
        if number > _BOTH:  # the cheapest kinds first, or last
            each = np.broadcast_to(of_layer, (number, *shape))
            order = np.argsort(-each if is_certain else each, axis=0, kind="stable")

        def held(total: Ints) -> Floats:
            if number <= _BOTH:
                found = [lines.held(layouts, index, way[:, place, total], of_layer) for way in self._ways]
                return found[0] if number == 1 else (np.maximum if is_certain else np.minimum)(*found)
            least, most = few[:, place, total], many[:, place, total]
            # Of more kinds than two the constant is that of kinds which every stage of so many layers has, or may have.
            present = most if is_certain else least
            return lines.held(layouts, index, _filled(order, least, most, total), of_layer, present)

        low, high = np.zeros(shape, dtype=np.int64), np.full(shape, layers)  # `low` layers fit, more than `high` do not
        while (low < high).any():
            middle = (low + high + 1) // 2
            fits = held(middle) <= limit_bytes
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    @cached_property
    def _ways(self) -> Sequence[Ints]:
        """Layers by kind, by place and total as :attr:`_windows`: of one kind, or of two with most of either."""
        few, many = self._windows
        order, total = np.arange(len(few)).reshape(-1, 1, 1), np.broadcast_to(np.arange(few.shape[2]), few.shape[1:])
        return [_filled(one, few, many, total) for one in ([order, order[::-1]] if len(few) > 1 else [order])]

    @cached_property
    def _windows(self) -> tuple[Ints, Ints]:
        """Of as many layers that follow one another the fewest and the most of each kind, by stage: (kinds, k, L + 1).

        The first stage has the first layers; another may begin behind as many as there are stages before it, of which
        no more than k - 1 are counted.
        """
        before = layers_before(self.transformer.layer_kinds)
        number = before.shape[1] - 1
        few, many = np.zeros((2, len(before), min(number, _MOST_PLACES), number + 1), dtype=np.int64)
        for size in range(number + 1):
            counts = before[:, size:] - before[:, : number + 1 - size]  # by where they begin
            first = np.minimum(np.arange(few.shape[1]), counts.shape[1] - 1)
            for table, pick in ((few, np.minimum), (many, np.maximum)):
                table[:, :, size] = pick.accumulate(counts[:, ::-1], axis=1)[:, ::-1][:, first]
                table[:, 0, size] = counts[:, 0]
        return few, many

    def held_bytes(self, layouts: Layouts, layers: Ints) -> Floats:
        """Return the bytes of every stage, shape (p, n), as :meth:`stage_bytes` counts them; no stage has no layers.

        Parameters
        ----------
        layouts, layers
            As of :meth:`stage_bytes`.
        """
        kinds, index, lines = (
            layers_by_kind(self.transformer, layers),
            np.arange(len(layers))[:, None],
            self._lines(layouts),
        )
        return lines.held(layouts, index, kinds, lines.of_layer(self.in_flight(layouts, index)))

    def _lines(self, layouts: Layouts) -> "_Lines":
        """Return what stages hold, as lines in their layers and micro-batches in flight."""
        kinds, number = len(self.transformer.kind_counts), 3 << len(self.transformer.kind_counts)

        def worked_out(places: Ints) -> Floats:
            found = self._lines_of(layouts.of(places))
            return np.concatenate([found.rest.reshape(number, -1), found.states, found.kept])

        known = _known_memory(self.transformer, self.precision, self.kernels, self.reserve_bytes, self.expert_imbalance)
        rows = known.lines.of(_holding(layouts), worked_out)
        rest, states, kept = np.split(rows, [number, number + kinds])
        return _Lines(rest=rest.reshape(3, 1 << kinds, -1), states=states, kept=kept)

    def _lines_of(self, layouts: Layouts) -> "_Lines":
        """Return the same, worked out."""
        devices, pipeline, nothing = self._devices(layouts), layouts.pipeline, np.zeros(len(layouts), dtype=np.int64)
        counts = len(self.transformer.kind_counts)
        alone = np.eye(counts, dtype=np.int64)
        places = (nothing, np.minimum(1, pipeline - 1), pipeline - 1)
        present = [(code, np.array([code >> kind & 1 for kind in range(counts)])) for code in range(1, 1 << counts)]
        asked = [(nothing, layers, number) for one in alone for layers, number in ((one, 1), (one, 2), (2 * one, 1))]
        asked += [(place, layers, 1) for place in places for _, layers in present]
        # All stages at once: their calls would take longer than their work.
        index, layers = np.array([place for place, _, _ in asked]), np.array([one for _, one, _ in asked]).T[..., None]
        in_flight = layers * np.array([number for _, _, number in asked])[:, None]
        held = iter(devices.terms(Stage(index=index, layers=layers, in_flight=in_flight))["total"])
        states, kept = np.zeros((2, counts, len(layouts)))
        for kind in range(counts):
            one = next(held)
            kept[kind] = next(held) - one
            states[kind] = next(held) - one - kept[kind]
        rest = np.zeros((3, 1 << counts, len(layouts)))
        for row in range(len(places)):
            for code, layers in present:
                base = next(held)
                for kind in np.flatnonzero(layers).tolist():
                    base = base - (states[kind] + kept[kind])
                rest[row, code] = base
            if counts > _BOTH:  # of no kind that is sure to be there
                rest[row, 0] = rest[row, [1 << kind for kind in range(counts)]].min(axis=0)
        return _Lines(rest=rest, states=states, kept=kept)

    def stage_bytes(self, layouts: Layouts, layers: Ints) -> dict[str, Floats]:
        """Return the bytes of every stage by term, and their total, shape (p, n); 0 where there is no stage.

        Parameters
        ----------
        layouts
            n of them; ``pipeline`` counts all stages.
        layers
            Of each stage, shape (p, n).
        """
        kinds, rows, devices = layers_by_kind(self.transformer, layers), [], self._devices(layouts)
        for index in range(len(layers)):
            held = np.broadcast_to(kinds[:, index], (len(kinds), len(layouts)))
            number = self.in_flight(layouts, np.array(index))
            terms = devices.terms(Stage(index=np.full(len(layouts), index), layers=held, in_flight=held * number))
            rows.append({name: np.where(index < layouts.pipeline, row, 0.0) for name, row in terms.items()})
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def _devices(self, layouts: Layouts) -> _Devices:
        """Return what does not depend on the stage."""
        return _Devices(
            self.transformer,
            layouts.of(slice(None)),
            replace(self.precision, has_whole_matrices=False),  # which is no line; of many ranks it is a little less
            self.kernels,
            self.reserve_bytes,
            self.expert_imbalance,
        )
