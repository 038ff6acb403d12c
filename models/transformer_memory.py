"""Bytes on one device of a transformer's training, for every pipeline stage and for many layouts at once.

A stage holds

* ``weights``, ``gradients`` and ``optimizer`` (fp32 copy and moments) of its layers; the first stage those of the
  embedding, the last one those of the head. ZeRO 1, 2 and 3 spreads the optimiser, the gradients too, the weights too,
  over ``data x context`` devices, experts over ``data x context / expert`` (S. Rajbhandari et al., SC20, arXiv
  1910.02054, section 5: 16, 4 + 12/d, 2 + 14/d and 16/d bytes a parameter);
* ``activations`` of all micro-batches in flight (:mod:`planner.models.transformer_stages`), layer by layer
  (:mod:`planner.models.transformer_activations`), with the embedding's on the first stage, and the last norm's and the
  logits' on the last one;
* ``temporary``: the larger of what one layer's backward pass needs beside that (full recomputation: all that a layer
  keeps) with the gradient of its largest matrix, and what the head's needs (gradients of the logits' matrix and of the
  stream, which sequence parallelism gathers there; copies of the logits); with ZeRO 2 and 3 the whole gradient of a
  layer, with ZeRO 3 the whole weights of the layer at work and, where exchange overlaps computing, of the next one;
* ``reserve``: what is not modelled, given by the caller: the device's context, buffers of the communication library,
  kernels' workspaces, fragmentation, images and token numbers.

Moments of the maximum differ between the terms; they are added, which is exact for the largest ones. Nothing here grows
with the number of layers but the table of their kinds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Bools, Layouts
from planner.models.memory import Precision
from planner.models.transformer_activations import (
    Kernels,
    LayerBytes,
    embedding_bytes,
    head_bytes,
    layer_bytes,
    stream_split,
)
from planner.models.transformer_parameters import (
    Parameters,
    block_parameters,
    embedding_parameters,
    head_parameters,
    vocabulary_rows,
)
from planner.models.transformer_stages import (
    Stage,
    chunk_in_flight,
    every_stage,
    fullest_stages,
)
from planner.transformer import LayerKind, Transformer

__all__ = ["PRECISIONS", "TERMS", "memory_bytes", "stage_bytes_of", "stage_memory_bytes"]

TERMS = ("weights", "gradients", "optimizer", "activations", "temporary", "reserve")
_LOSS_COPY_BYTES = 4

# Bytes of a weight, its gradient, an activation, the fp32 copy, and Adam's moments.
PRECISIONS: Mapping[str, Precision] = {
    # 16 bytes: gradients in half precision (Rajbhandari et al., section 3.1).
    "mixed": Precision(weight_bytes=2, gradient_bytes=2, activation_bytes=2, master_bytes=4, optimizer_bytes=8),
    # 18 bytes: gradients summed in fp32 (Megatron-LM with bf16; Korthikanti et al., figure 1).
    "megatron": Precision(weight_bytes=2, gradient_bytes=4, activation_bytes=2, master_bytes=4, optimizer_bytes=8),
    # As above, with fp8 copies of every weight, as it is and transposed (Transformer Engine).
    "megatron-fp8": Precision(weight_bytes=4, gradient_bytes=4, activation_bytes=2, master_bytes=4, optimizer_bytes=8),
    # Weights and gradients are kept in fp32 and computed with in bf16 (PyTorch's fully sharded data parallel).
    "fsdp": Precision(weight_bytes=4, gradient_bytes=4, activation_bytes=2, master_bytes=0, optimizer_bytes=8),
    "fp32": Precision(weight_bytes=4, gradient_bytes=4, activation_bytes=4, master_bytes=0, optimizer_bytes=8),
}


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
    precision
        E.g. one of :data:`PRECISIONS`.
    kernels
        What the software keeps; by default that of today's frameworks.
    reserve_bytes
        On every device, for what is not modelled.
    pipeline_layers
        Layers of every stage, where they are not spread evenly; all layouts then have that many stages.
    expert_imbalance
        Tokens of the busiest device's experts over the mean.

    Returns
    -------
    The terms :data:`TERMS`, and ``total``, their sum; arrays of shape (n,).
    """
    layouts = layouts.of(slice(None))
    parts = _Parts(transformer, layouts, precision, kernels or Kernels(), expert_imbalance)
    stages = fullest_stages(transformer, layouts, pipeline_layers)
    best = parts.terms(stages[0], reserve_bytes)
    for stage in stages[1:]:
        other = parts.terms(stage, reserve_bytes)
        is_fuller = other["total"] > best["total"]
        best = {name: np.where(is_fuller, other[name], best[name]) for name in best}
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
    """Return the same of every stage of one layout; arrays of shape (stages,)."""
    repeated, stage = every_stage(transformer, layout, pipeline_layers)
    parts = _Parts(transformer, repeated, precision, kernels or Kernels(), expert_imbalance)
    moments = parts.terms(stage, reserve_bytes)
    # Of the moments of a stage the fullest: sorted by stage and then by bytes, it is the last one.
    order = np.lexsort((moments["total"], stage.index))
    last = order[np.flatnonzero(np.diff(stage.index[order], append=-1))]
    return {name: array[last] for name, array in moments.items()}


def stage_bytes_of(
    transformer: Transformer,
    layouts: Layouts,
    *,
    precision: Precision,
    kernels: Kernels | None = None,
    reserve_bytes: float = 0.0,
    expert_imbalance: float = 1.0,
) -> Callable[[Stage], Mapping[str, Floats]]:
    """Return what gives the same of one stage of every layout, whatever its layers."""
    parts = _Parts(transformer, layouts.of(slice(None)), precision, kernels or Kernels(), expert_imbalance)
    return lambda stage: parts.terms(stage, reserve_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kind:
    """One kind of layer: its parameters on a device, and the bytes of a micro-batch."""

    parameters: Parameters
    bytes: LayerBytes


class _Parts:
    """What does not depend on the stage, computed once; and the terms of any stage."""

    def __init__(
        self,
        transformer: Transformer,
        layouts: Layouts,
        precision: Precision,
        kernels: Kernels,
        expert_imbalance: float,
    ) -> None:
        self._transformer, self._layouts = transformer, layouts
        self._precision, self._kernels = precision, kernels
        number = precision.activation_bytes

        def of(kind: LayerKind) -> _Kind:
            counted = layer_bytes(
                transformer,
                kind,
                layouts,
                activation_bytes=number,
                kernels=kernels,
                expert_imbalance=expert_imbalance,
            )
            return _Kind(parameters=block_parameters(transformer, kind, layouts), bytes=counted)

        kinds = transformer.num_moe_layers
        self._dense = of("dense") if kinds < transformer.num_layers else None
        self._moe = of("moe") if kinds else None
        self._embedding = embedding_parameters(transformer, layouts)
        self._head = head_parameters(transformer, layouts)
        self._embedding_kept = embedding_bytes(transformer, layouts, number, kernels)
        self._head_kept = head_bytes(transformer, layouts, number) + self._logits(
            number if kernels.is_loss_fused else _LOSS_COPY_BYTES
        )
        self._shards = layouts.data * layouts.context

    def terms(self, stage: Stage, reserve_bytes: float) -> dict[str, Floats]:
        """Return the terms of a stage of every layout, and their total."""
        size = len(stage.index)
        found = {
            **self._states(stage),
            "activations": self._activations(stage),
            "temporary": self._temporary(stage),
            "reserve": np.full(size, float(reserve_bytes)),
        }
        found = {name: np.broadcast_to(found[name], size) for name in TERMS}
        return {**found, "total": sum(found.values(), np.zeros(size))}

    def _kinds(self) -> tuple[tuple[_Kind | None, int], ...]:
        """Return the kinds of layers with their place in a pair of counts."""
        return (self._dense, 0), (self._moe, 1)

    def _is_ends(self, stage: Stage) -> tuple[Floats, Floats]:
        """Return 1 where a stage is the first, and where it is the last."""
        return (stage.index == 0) * 1.0, (stage.index == self._layouts.pipeline - 1) * 1.0

    # -- weights, gradients, optimiser

    def _states(self, stage: Stage) -> dict[str, Floats]:
        """Return the bytes that do not depend on the micro-batch."""
        is_first, is_last = self._is_ends(stage)
        shared = is_first * self._embedding + is_last * self._head
        routed = np.zeros(1)
        counts = stage.dense, stage.moe
        for kind, place in self._kinds():
            if kind is not None:
                shared = shared + counts[place] * kind.parameters.shared
                routed = routed + counts[place] * kind.parameters.routed
        precision, zero = self._precision, self._layouts.zero
        on_device = ~self._layouts.is_offloaded
        state_bytes = precision.master_bytes + precision.optimizer_bytes
        return {
            "weights": precision.weight_bytes * self._sharded(shared, routed, zero >= 3),
            "gradients": precision.gradient_bytes * self._sharded(shared, routed, zero >= 2),
            "optimizer": state_bytes * self._sharded(shared, routed, zero >= 1) * on_device,
        }

    def _sharded(self, shared: Floats, routed: Floats, is_sharded: Bools) -> Floats:
        """Return the parameters that a device keeps, where ZeRO spreads those of equal ranks over them or not."""
        return np.where(is_sharded, (shared + routed * self._layouts.expert) / self._shards, shared + routed)

    # -- activations

    def _activations(self, stage: Stage) -> Floats:
        """Return the bytes that wait for a backward pass at the fullest moment."""
        counts = stage.dense_in_flight, stage.moe_in_flight
        is_first, is_last = self._is_ends(stage)
        first = is_first * chunk_in_flight(self._layouts, stage.index, 0) * self._embedding_kept
        behind = chunk_in_flight(self._layouts, stage.index, self._layouts.interleave - 1)
        found = first + is_last * behind * self._head_kept
        for kind, place in self._kinds():
            if kind is not None:
                found = found + counts[place] * kind.bytes.kept
        return found

    def _logits(self, number_bytes: float) -> Floats:
        """Return the bytes of a micro-batch's logits on one device."""
        samples = self._layouts.microbatch / self._layouts.context * self._transformer.sequence_length
        has_logits = self._transformer.head in ("language", "masked_language")
        return number_bytes * has_logits * samples * vocabulary_rows(self._transformer, self._layouts)

    # -- what is there for a moment

    def _temporary(self, stage: Stage) -> Floats:
        """Return the bytes of the fullest moment beyond weights, gradients, optimiser and activations."""
        number = self._precision.activation_bytes
        counts = stage.dense, stage.moe
        layer, held, block = np.zeros(1), np.zeros(1), np.zeros(1)
        for kind, place in self._kinds():
            if kind is None:
                continue
            is_here, own = counts[place] > 0, kind.parameters
            gradient = 0.0 if self._kernels.has_placeholders else number * own.largest
            layer = np.maximum(layer, is_here * (kind.bytes.working + gradient))
            block = np.maximum(block, is_here * own.all)
            if self._kernels.has_placeholders:
                held = np.maximum(held, is_here * number * own.matrices)
        _, is_last = self._is_ends(stage)
        # A micro-batch's logits are gone by the time that its layers run backward.
        moment = np.maximum(layer - is_last * self._head_kept, is_last * self._head_working())
        return np.maximum(moment, 0.0) + held + self._gathered(stage, block)

    def _head_working(self) -> Floats:
        """Return what the backward pass of the logits needs: their gradient, their matrix's, and the stream's."""
        number, layouts = self._precision.activation_bytes, self._layouts
        matrix = number * vocabulary_rows(self._transformer, layouts) * self._transformer.hidden_size
        whole = number * self._transformer.hidden_size * self._transformer.sequence_length
        stream = whole * layouts.microbatch / layouts.context
        gathered = np.where(stream_split(layouts) > 1, 2 * stream, stream)
        loss = 0.0 if self._kernels.is_loss_fused else self._logits(number + _LOSS_COPY_BYTES)
        return matrix + gathered + loss

    def _gathered(self, stage: Stage, block: Floats) -> Floats:
        """Return whole gradients (ZeRO 2 and 3) and weights (ZeRO 3) of the layers at work, where these are spread."""
        layouts, precision = self._layouts, self._precision
        is_first, is_last = self._is_ends(stage)
        ends = np.maximum(is_first * self._embedding, is_last * self._head)
        ahead = np.where(layouts.overlaps_data, block, 0.0)
        weights = (layouts.zero >= 3) * precision.activation_bytes * (np.maximum(block, ends) + ahead)
        gradients = (layouts.zero >= 2) * precision.activation_bytes * block
        return np.where(self._shards > 1, weights + gradients, 0.0)
