"""FLOP and pushes of one training iteration, counted as the heterogeneous-PS model counts any network's layers.

Source: equations 3, 4 and 20 to 27 of Y. Zeng et al., Int. J. Intelligent Systems, 2023, doi:10.1155/2023/2663115.
Every activation is a sigmoid, evaluated as a Taylor series. Leaves out biases in the forward pass, batch norm, and
pooling unless a :class:`Counting` adds it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.dnn import Dnn, Layer
from planner.errors import ModelError

Variant = Literal["corrected", "printed"]
BackwardCount = Literal["once", "per_sample"]


def flop_per_weight(num_taylor_terms: int = 20) -> int:
    """Return the backward FLOP of one weight (eqs. 23, 25 and 26); raise ModelError for a series without terms.

    Notes
    -----
    ``6 + sig`` with ``sig = 2 + x`` for the sigmoid and ``x = 1 + 4 i`` for the exponential function's Taylor series.
    Table 1 and every prediction of the paper use 85, that is 19 terms.

    >>> flop_per_weight(), flop_per_weight(19)
    (89, 85)
    """
    if num_taylor_terms < 1:
        raise ModelError(f"a Taylor series has at least 1 term, not {num_taylor_terms}.")
    return 6 + 2 + 1 + 4 * num_taylor_terms


FLOP_PER_WEIGHT = flop_per_weight()  # 89: eq. 23, as the text has it
FLOP_PER_BIAS = 2  # eq. 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """How the published counts differ from the equations; by default, not at all.

    Attributes
    ----------
    ignored
        Layers whose names contain this text count nothing, e.g. the shortcuts of a ResNet; empty for none.
    flop_per_output
        Layer -> FLOP per output element that are counted beside the multiply-adds: max pooling.
    output_pixels
        Layer -> output height x width to count instead of the layer's own.
    layer_flop
        Layer -> FLOP that were typed instead of counted.
    input_channels
        Layer -> input channels (or features) to count its weights with, instead of its own.
    variant
        ``printed`` takes eq. 20 at its word, without the width of the output.
    """

    ignored: str = ""
    flop_per_output: Mapping[str, float] = field(default_factory=dict)
    output_pixels: Mapping[str, int] = field(default_factory=dict)
    layer_flop: Mapping[str, float] = field(default_factory=dict)
    input_channels: Mapping[str, int] = field(default_factory=dict)
    variant: Variant = "corrected"

    def layers_of(self, dnn: Dnn) -> tuple[Layer, ...]:
        """Return the layers that count; raise ModelError if a name is none of the network's."""
        named = {*self.flop_per_output, *self.output_pixels, *self.layer_flop, *self.input_channels}
        if unknown := named - {layer.name for layer in dnn.layers}:
            raise ModelError(f"{dnn.name} has no layer {sorted(unknown)[0]!r}, for which a counting is given.")
        return tuple(layer for layer in dnn.layers if not self.ignored or self.ignored not in layer.name)


def layer_forward_flop(layer: Layer, *, variant: Variant = "corrected", output_pixels: int | None = None) -> float:
    """Return the FLOP of one sample: ``2 inch kh kw outn outh outw`` (eqs. 3, 4 and 20), 0 without multiply-adds.

    Parameters
    ----------
    variant
        ``printed`` is eq. 20 as it stands, without ``outw``, which Table 1 does have.
    output_pixels
        ``outh outw``, if not the layer's own.

    Notes
    -----
    ``inch kh kw outn`` is the number of weights. Fully-connected layers have ``kh = kw = outh = outw = 1``. The paper
    knows no other layers with multiply-adds; those of a transformer count 2 FLOP each: attention multiplies without
    weights, and an embedding has weights that it does not multiply. A transposed convolution uses its weights at every
    position of its input.
    """
    if layer.kind not in ("convolution", "fully_connected") or not layer.num_weights:
        return 2.0 * layer.num_multiply_adds
    pixels = layer.num_multiply_adds // layer.num_weights if output_pixels is None else output_pixels
    width = layer.output_shape[-1] if len(layer.output_shape) > 1 else 1
    return 2.0 * layer.num_weights * (pixels // width if variant == "printed" and output_pixels is None else pixels)


def forward_flop(dnn: Dnn, counting: Counting | None = None) -> float:
    """Return the FLOP of one sample's forward pass (eq. 21) under a convention."""
    by = counting or Counting()

    def counted(layer: Layer) -> float:
        if layer.name in by.layer_flop:
            return by.layer_flop[layer.name]
        pixels = by.output_pixels.get(layer.name)
        beside = by.flop_per_output.get(layer.name, 0.0) * layer.num_output_elements
        return layer_forward_flop(layer, variant=by.variant, output_pixels=pixels) + beside

    return sum(map(counted, by.layers_of(dnn)))


def counted_weights(dnn: Dnn, counting: Counting | None = None) -> int:
    """Return the number of weights, biases and batch norm left out, under a convention."""
    by, shapes = counting or Counting(), {layer.name: layer.output_shape for layer in dnn.layers}
    total = 0
    for layer in by.layers_of(dnn):
        channels, own = by.input_channels.get(layer.name), layer.num_weights
        total += own if channels is None else own * channels // shapes[dnn.inputs_of(layer.name)[0]][0]
    return total


def num_biases(dnn: Dnn) -> int:
    """Return the number of biases: ``parab`` of eq. 22, which print calls the size of the output tensors."""
    return sum(one.num_elements for layer in dnn.layers for one in layer.tensors if one.role == "bias")


def num_pushes(dnn: Dnn, *, num_unexplained: int) -> int:
    """Return the pushes of an iteration (Table 1): variables, trained or moving, and a few more that the paper found.

    Notes
    -----
    TensorFlow sends every variable on its own. The rest was measured, not modelled: 2, but 3 for AlexNet and 4 for
    OverFeat.
    """
    return sum(len(layer.tensors) for layer in dnn.layers) + num_unexplained


def backward_flop(
    *, num_weights: float, num_biases: float, per_weight: float = FLOP_PER_WEIGHT, per_bias: float = FLOP_PER_BIAS
) -> float:
    """Return the FLOP of one backward pass, whatever the batch (eq. 22); raise ModelError below 0.

    Notes
    -----
    The text takes ``para`` now for all parameters and now for the weights; eqs. 23 and 24 make sense for weights and
    biases. Published figures leave the biases out (``num_biases=0``) and count 85 per weight.

    >>> backward_flop(num_weights=100, num_biases=10)
    8920
    """
    if min(num_weights, num_biases, per_weight, per_bias) < 0:
        raise ModelError(
            f"counts and FLOP must be >= 0, not {num_weights:g} weights of {per_weight:g} FLOP and {num_biases:g} "
            f"biases of {per_bias:g}."
        )
    return num_weights * per_weight + num_biases * per_bias


def iteration_flop(
    *, forward_flop: float, backward_flop: float, batch_size: float, backward: BackwardCount = "once"
) -> float:
    """Return the FLOP of one iteration (eq. 27), ``batch x forward + backward``; raise ModelError for an empty batch.

    Parameters
    ----------
    batch_size
        The worker's own share of the batch; > 0.
    backward
        ``once`` an iteration is the paper's definition; ``per_sample`` is the physical one, since every sample has
        its own error to propagate.

    >>> iteration_flop(forward_flop=10, backward_flop=30, batch_size=4)
    70
    >>> iteration_flop(forward_flop=10, backward_flop=30, batch_size=4, backward="per_sample")
    160
    """
    if not (batch_size > 0 and math.isfinite(batch_size)):
        raise ModelError(f"a worker's share of the batch must be finite and > 0, not {batch_size:g} samples.")
    return batch_size * forward_flop + (batch_size if backward == "per_sample" else 1) * backward_flop
