"""Products in one byte or half a byte: which operators have them, what they reach, and what turning numbers costs.

A program that trains in bf16 may multiply numbers of eight or four bits: it turns both factors of a product into short
ones with scales, and adds up in fp32. All else stays as it was: the stream between layers, norms, activations, the
core of attention (unless it is told), the router, embedding and logits, gradients and the optimiser.

- *fp8* (P. Micikevicius et al., arXiv 2209.05433): one scale for a tensor, from steps before (``delayed``) or from the
  tensor itself (``current``, which reads it once more: NVIDIA's "fp8-cs", Megatron-Core's ``tensorwise``); or one for
  128 numbers of an activation and 128 x 128 of a weight (``blockwise``, DeepSeek-AI, arXiv 2412.19437, section 3.3).
- *mxfp8* (OCP Microscaling Formats 1.0; A. Mishra et al., arXiv 2506.08027): one scale of a byte for 32 numbers that
  follow one another in the inner width, so that a tensor which is read both ways is kept twice.
- *nvfp4* (NVIDIA, arXiv 2509.25149): numbers of four bits, one scale of a byte for 16 and one for the tensor; the
  product that gives a weight's gradient has its factors transformed (Hadamard), gradients are rounded at random;
  some of the last layers may stay short (about 15 % there).

**Which products**: the matrices of a block, routed experts among them (``matmul`` of :mod:`planner.models.operators`
in blocks); neither routers nor gates. As Transformer Engine has it (``te.Linear`` and
``te.GroupedLinear`` under ``fp8_autocast``), and torchao (``convert_to_float8_training``, without ``output``).

**What turning costs**, in bytes moved: an activation is read once (2) and written both as it is and transposed, for the
product of the weight's gradient; so is the gradient of the output. Where a scale is of the tensor itself it is read
once more before. Weights are turned once a step: their bytes count with the optimiser's.

**Memory.** What products alone read is kept in the short type (one copy: the other one is for the forward pass).
Weights: ``kept_weight_bytes``. **Links.** Tensor groups gather short numbers, and reduce in two bytes; weights are
gathered as they are kept, where that is one byte.
"""

from collections.abc import Mapping
from typing import Any

from planner.cluster import Device
from planner.frozen import frozen
from planner.models.operators import ROUTED, TransformerOperator
from planner.models.roofline import peak_flop_per_s
from planner.transformer import Transformer

_PRODUCTS = "matmul"
_ON_THEIR_WAY = ("dispatch", "combine")  # of tokens to experts and back


@frozen
class NumberType:
    """A type of short numbers, by what it takes."""

    peak: str  # under which type a device's table has its peak
    element_bytes: float  # of a number with its share of the scales
    cast_bytes: (
        float  # moved to turn a number of two bytes that a product reads forward, or a gradient: see the chapter
    )
    weight_cast_bytes: float  # moved once a step to turn a weight
    # of a weight as Megatron-Core keeps it: the short ones alone (``--fp8-param-gather``) or beside those in bf16
    kept_weight_bytes: int
    gathered_weight_bytes: float  # of a weight, as replicas gather it
    gathered_bytes: float = 1.0  # of a number that tensor groups gather for a product


# By type and recipe. Of fp8 with a scale for each tensor a weight is kept as it is and transposed (on Hopper products
# read their factors one way only), gathered in one byte. With blocks of 128 x 128 the weights in bf16 stay, too. mxfp8
# keeps both ways alone, but gathers bf16 (``--reuse-grad-buf-for-mxfp8-param-ag``). nvfp4 keeps bf16 besides.
NUMBER_TYPES: Mapping[tuple[str, str], NumberType] = {
    ("fp8", "delayed"): NumberType(
        peak="fp8",
        element_bytes=1.0,
        cast_bytes=4.0,
        weight_cast_bytes=4.0,
        kept_weight_bytes=2,
        gathered_weight_bytes=1.0,
    ),
    ("fp8", "current"): NumberType(
        peak="fp8",
        element_bytes=1.0,
        cast_bytes=6.0,
        weight_cast_bytes=6.0,
        kept_weight_bytes=2,
        gathered_weight_bytes=1.0,
    ),
    ("fp8", "blockwise"): NumberType(
        peak="fp8",
        element_bytes=1.03,
        cast_bytes=4.06,
        weight_cast_bytes=4.0,
        kept_weight_bytes=4,
        gathered_weight_bytes=2.0,
    ),
    ("mxfp8", "mxfp8"): NumberType(
        peak="fp8",
        element_bytes=1.03,
        cast_bytes=4.06,
        weight_cast_bytes=4.06,
        kept_weight_bytes=2,
        gathered_weight_bytes=2.0,
    ),
    ("nvfp4", "nvfp4"): NumberType(
        peak="fp4",
        element_bytes=0.5625,
        gathered_bytes=0.5625,
        cast_bytes=5.1,
        weight_cast_bytes=5.1,
        kept_weight_bytes=3,
        gathered_weight_bytes=2.0,
    ),
}
LOW_TYPES = ("fp8", "mxfp8", "nvfp4")
FP8_RECIPES = ("current", "delayed", "blockwise")  # the first is the default


@frozen
class LowProducts:
    """How a device multiplies short numbers under a program."""

    # name, recipe: a key of :data:`NUMBER_TYPES`
    name: str
    recipe: str
    peak_flop_per_s: float  # dense, of the type
    product_efficiency: float  # share of it that large products reach
    routed_share: float = 1.0  # how fast the products of routed experts are over one product
    # bytes that turning numbers moves over those that are counted: kernels that do it besides move fewer more
    cast_ratio: float = 1.0
    # the same of routed experts, whose activations and permutations count here, too: a program may do them in the
    # kernel of the products
    routed_moved_ratio: float = 1.0
    # what a tile's start-up takes over that of two bytes: half the bytes to load, and kernels that load the next tile
    # while they store the last
    startup_ratio: float = 1.0
    wide_share: float = 0.0  # share of the layers whose products stay in two bytes

    @property
    def type(self) -> NumberType:
        """What the type takes."""
        return NUMBER_TYPES[self.name, self.recipe]


@frozen
class LowFigures:
    """What is fitted of short products, and of how programs launch kernels."""

    # share of a type's peak that large products reach, by the peak's name and device
    shares: Mapping[str, Mapping[str, float]]
    ratios: Mapping[str, float]  # the same over the share of bf16's peak, of devices without steps, by the peak's name
    programs: Mapping[str, float]  # over these shares, by program that is no Transformer Engine's
    # startup_ratio, routed_share, cast_ratio: as of :class:`LowProducts`
    startup_ratio: float
    routed_share: float
    cast_ratio: float
    # :attr:`LowProducts.routed_moved_ratio` where kernels are captured: the programs that capture whole steps do what
    # experts move in the kernels of their products
    graph_moved_ratio: float
    graph_launch_ratio: float  # what CUDA graphs leave of a launch floor
    # floor_ratio, expert_launch_s: where they are not captured: launch floor of a layer with routed experts, over that
    # of others; and what each expert on a device adds to it, whose numbers are turned and multiplied by kernels of its
    # own
    floor_ratio: float
    expert_launch_s: float

    @classmethod
    def of(cls, fitted: Mapping[str, object]) -> "LowFigures":
        """Return those that :func:`planner.data.fits.transformer_rates` has as ``low_precision``."""
        known: Mapping[str, Any] = fitted
        return cls(shares=known["shares"], ratios=known["ratios"], programs=known["programs"], **known["common"])

    def products(
        self,
        device: Device,
        product_efficiency: float,
        low: tuple[str, str],
        *,
        program: str,
        has_fused_experts: bool,
        wide_share: float = 0.0,
    ) -> LowProducts:
        """Return how a device multiplies.

        Parameters
        ----------
        device, product_efficiency
            The device, and the share of bf16's peak that large products reach there.
        low
            Type and recipe.
        program, has_fused_experts
            What trains, and whether it does what experts move in their products' kernel: :func:`fuses_experts`.
        wide_share
            Of the layers whose products stay in bf16.

        Raises
        ------
        ModelError
            If the device has no rate of that type.
        """
        kind = NUMBER_TYPES[low].peak
        share = self.shares[kind].get(device.name, self.ratios[kind] * product_efficiency)
        return LowProducts(
            name=low[0],
            recipe=low[1],
            peak_flop_per_s=peak_flop_per_s(device, kind),
            product_efficiency=share * self.programs.get(program, 1.0),
            routed_share=self.routed_share,
            cast_ratio=self.cast_ratio,
            routed_moved_ratio=self.graph_moved_ratio if has_fused_experts else 1.0,
            startup_ratio=self.startup_ratio,
            wide_share=wide_share,
        )

    def launching(self, *, has_graphs: bool, has_fused_experts: bool, is_low: bool) -> dict[str, float]:
        """Return fields of :class:`planner.models.compute.Software` that say how kernels are launched.

        Parameters
        ----------
        has_graphs, has_fused_experts
            Whether kernels are captured, and those of experts, too: see :func:`fuses_experts`.
        is_low
            Whether products are short.
        """
        ratio = self.graph_launch_ratio if has_graphs else 1.0
        found = {"launch_ratio": ratio} if has_graphs else {}
        if is_low and not has_fused_experts:
            found |= {"expert_floor_ratio": self.floor_ratio / ratio, "expert_launch_s": self.expert_launch_s}
        return found


def has_low_product(one: TransformerOperator) -> bool:
    """Return whether an operator of a block multiplies short numbers, where a program does."""
    return one.kind == _PRODUCTS and one.product is not None


def is_fused_with_experts(one: TransformerOperator) -> bool:
    """Return whether an operator that moves numbers may be done in the kernel of experts' products."""
    return one.product is None and (one.name.startswith(ROUTED) or one.kind in _ON_THEIR_WAY)


def fuses_experts(transformer: Transformer, *, has_graphs: bool) -> bool:
    """Return whether experts' products, what they move, and their launches are captured where a program captures.

    Only where experts have gates: the kernel that multiplies for all of them and does the activation besides takes
    gated parts (``moe_mlp_glu_interleave_size`` of Megatron-Core), and without it their numbers of tokens come to the
    host.
    """
    return has_graphs and (transformer.experts is None or transformer.is_gated)


def recipe_of(name: str, fp8_recipe: str | None) -> str:
    """Return the recipe of a type: the one given for fp8, or its default; other types have one of their own."""
    return (fp8_recipe or FP8_RECIPES[0]) if name == "fp8" else name


def supports(peaks: Mapping[str, float], device: str, name: str) -> bool:
    """Return whether a device multiplies a type: fp8 by its peak; scales of 32 or 16 numbers by that of four bits.

    Parameters
    ----------
    peaks, device
        The device's, by data type, and its name: AMD's four bits are those of OCP, not of NVIDIA.
    name
        Of :data:`LOW_TYPES`.
    """
    if name == "fp8":
        return "fp8" in peaks
    return {"fp8", "fp4"} <= peaks.keys() and not (name == "nvfp4" and device.startswith("mi"))
