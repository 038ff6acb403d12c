"""Seconds of computation on one device: of any network's layers, of single kernels, and of a transformer's layers.

**Any layer.** FLOP over a device's peak and the share of it that is used. Forward counts 2 FLOP a multiply-add;
backward is twice forward (gradient of the input and of the weights), eqs. 4 to 6 of T. Liu et al., WWW '22,
doi:10.1145/3485447.3511981. Layers without multiply-adds (pooling, activation, normalisation) are taken to cost
nothing, as there; what they do cost sits in the fitted utilisation. Seconds measured on one device are scaled to
another by the ratio of their peaks.

**A kernel** of a transformer in short numbers: tiles, waves, start-up and bytes as any network's kernels have them
(:mod:`planner.models.roofline`), with shares that are fitted to the steps of programs that train transformers. Those of
a program are overlays: how attention is computed, what is moved besides, what launching takes. Besides, tensor cores
want widths that are multiples of 8 numbers of two bytes (NVIDIA, Matrix Multiplication Background User's Guide, "Tensor
Core requirements"); other widths fall back to slower kernels. Leaves out caches between kernels, clocks that sink under
load (they are in the fitted shares), and sparsity.

**A transformer's layer, embedding and head**, for many layouts at once: every operator of
:mod:`planner.models.operators`. Tensor parallelism cuts the columns of a part's first product and the inner width of
its last (M. Shoeybi et al., arXiv 1909.08053, section 3); context parallelism cuts the tokens; experts see the tokens
of all ranks that share them. Backward has two products for one of forward (section 5.1 of D. Narayanan et al., SC21,
arXiv 2104.04473). Leaves out communication and the floor that launching kernels sets:
:mod:`planner.models.transformer_time`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from planner.cluster import Device
from planner.cost import Floats, Profile
from planner.dnn import Dnn
from planner.frozen import frozen
from planner.models import scans
from planner.models.layouts import Ints, Layouts, Recompute
from planner.models.low_precision import LowProducts, has_low_product, is_fused_with_experts
from planner.models.memory import Precision
from planner.models.operators import (
    BACKWARD_PER_FORWARD,
    FLOP_PER_MULTIPLY_ADD,
    INDEXER,
    ROUTED,
    TransformerOperator,
    block_operators,
    embedding_operators,
    head_operators,
    operator_kind,
)
from planner.models.optimizers import Optimizer
from planner.models.parameters import FROZEN_BYTES, matrix_parameters
from planner.models.recomputation import MODULE_SETS, again_names
from planner.models.roofline import MOVED, USUAL_LOADS, DeviceLimits, Grid, longer_of, peak_flop_per_s, startup_width
from planner.trained import QUANTISED_BYTES
from planner.transformer import KINDS, LayerKind, Transformer

# -- any layer ---------------------------------------------------------------------------------------------------------


def profile_from_flop(
    dnn: Dnn,
    device: Device,
    *,
    dtype: str,
    utilisation: float,
    flop_per_multiply_add: int = FLOP_PER_MULTIPLY_ADD,
    utilisation_by_kind: Mapping[str, float] | None = None,
    update_s: float = 0.0,
) -> Profile:
    """Return seconds per sample of every layer: ``C(i) / (c pi)`` forward (eq. 5), twice that backward (eq. 6).

    Parameters
    ----------
    dnn, device, dtype
        The layers, and the device and the data type whose peak ``pi`` they are computed at.
    utilisation, utilisation_by_kind
        Share ``c`` of the peak that is reached, in general and for some kinds of layer. It may exceed 1 where it was
        fitted to counts of multiply-adds or to algorithms that save FLOP.
    flop_per_multiply_add
        2; or 1, to read ``c`` as a fit on multiply-adds.
    update_s
        Of the optimiser's step, passed on.
    """
    by_kind = utilisation_by_kind or {}
    used = np.array([by_kind.get(layer.kind, utilisation) for layer in dnn.layers])
    flop = np.array([layer.num_multiply_adds for layer in dnn.layers], dtype=float) * flop_per_multiply_add
    forward_s = flop / (used * peak_flop_per_s(device, dtype))
    return Profile(
        forward_s=forward_s,
        backward_s=BACKWARD_PER_FORWARD * forward_s,
        update_s=update_s,
        origin=f"FLOP at {utilisation:.4g} of the {dtype} peak of {device.name}",
    )


def optimizer_step_s(num_trainable: int, device: Device, precision: Precision) -> float:
    """Return the seconds of the optimiser's step, which moves memory and computes next to nothing.

    Read the gradient, read and write the master weights and the optimiser's state, and write the weights where they are
    kept in another type: own estimate from the device's memory bandwidth, a lower bound on the real step.

    Parameters
    ----------
    num_trainable
        Parameters that the device steps.
    device, precision
        Whose memory is moved, and the bytes of a parameter.
    """
    is_mixed = precision.master_bytes > 0
    touched = precision.gradient_bytes + 2 * precision.kept_bytes + (1 if is_mixed else 2) * precision.weight_bytes
    return num_trainable * touched / device.memory_bandwidth_bytes_per_s


def scaled_to(profile: Profile, measured_on: Device, device: Device, *, dtype: str) -> tuple[Profile, str]:
    """Return a measured profile for another device, and what to tell the reader; nothing where it is the same.

    Seconds of all layers are scaled by the ratio of the devices' peaks: every layer is taken to use the same share of
    either peak; layers that wait for memory do not. Without any common peak the profile comes back as it is. Reading
    and the update stay: neither is the device's arithmetic.

    Parameters
    ----------
    profile, measured_on
        Seconds, and the device that they were measured on.
    device
        The device to scale to.
    dtype
        Whose peaks are compared; those of fp32 where one of the devices has no such peak.
    """
    if device.name == measured_on.name:
        return profile, ""
    peaks, old_peaks = device.peak_flop_per_s, measured_on.peak_flop_per_s
    common = next((name for name in (dtype, "fp32") if name in peaks and name in old_peaks), None)
    if common is None:
        return profile, (
            f"seconds on {device.name} are taken to be those measured on {measured_on.name}: there is no peak of both "
            f"to scale by"
        )
    ratio = old_peaks[common] / peaks[common]
    how = f"scaled from {measured_on.name} by {ratio:.4g}, the ratio of their {common} peaks"
    scaled = replace(
        profile,
        forward_s=profile.forward_s * ratio,
        backward_s=profile.backward_s * ratio,
        origin=f"{profile.origin}; {how}",
    )
    return scaled, f"seconds on {device.name} {how}"


# -- single kernels of transformers ------------------------------------------------------------------------------------

_ALIGNED = 8  # numbers of two bytes in the 16 bytes that a load takes at once
_REFERENCE_FLOP_PER_S = 312e12 / 108  # of one multiprocessor of the A100, which the start-up is stated for


@frozen
class DeviceRates:
    """What is published of a device, and the three shares of it that are fitted."""

    name: str  # of the device
    peak_flop_per_s: float  # dense, of the data type that the products are in
    memory_bandwidth_bytes_per_s: float  # as :class:`planner.models.roofline.DeviceLimits` has it
    num_multiprocessors: int  # 1 where it is not known
    product_efficiency: float  # share of the peak that large products reach
    memory_efficiency: float  # share of the memory's bandwidth that kernels which only move memory reach
    attention_efficiency: float  # share of the peak that fused (flash) attention reaches
    # whether it multiplies numbers of one byte: Hopper and later, which libraries were tuned for over two years
    has_fp8: bool = False
    # how it multiplies shorter numbers, where the matrices of blocks do; None: as all else
    low: LowProducts | None = None
    startup_ratio: float = 1.0  # what a tile's start-up takes, over what is fitted for all devices in two bytes

    @classmethod
    def of(cls, device: Device, dtype: str, shares: Mapping[str, float]) -> "DeviceRates":
        """Return those of a device.

        Parameters
        ----------
        device, dtype
            The device, and the type of the products.
        shares
            The three that are fitted, by name.

        Raises
        ------
        ModelError
            If the device has no rate of that type.
        """
        limits = DeviceLimits.of(device, dtype)
        return cls(
            name=device.name,
            peak_flop_per_s=limits.product_flop_per_s,
            memory_bandwidth_bytes_per_s=limits.bytes_per_s,
            num_multiprocessors=limits.num_multiprocessors,
            has_fp8="fp8" in device.peak_flop_per_s,
            product_efficiency=shares["product_efficiency"],
            memory_efficiency=shares["memory_efficiency"],
            attention_efficiency=shares["attention_efficiency"],
        )

    def under(self, software: "Software") -> "DeviceRates":
        """Return those that a program reaches: its libraries may be older than what tuned ones make of the device.

        Parameters
        ----------
        software
            The program.
        """
        if not self.has_fp8 or software.fp8_device_ratio == 1.0:
            return self
        return replace(self, product_efficiency=self.product_efficiency * software.fp8_device_ratio)

    @property
    def moved_bytes_per_s(self) -> float:
        """Bytes a second that a kernel moves."""
        return self.memory_bandwidth_bytes_per_s * self.memory_efficiency

    @property
    def multiplied_flop_per_s(self) -> float:
        """FLOP a second of a large product."""
        return self.peak_flop_per_s * self.product_efficiency

    @property
    def most_flop_per_s(self) -> float:
        """FLOP a second that nothing exceeds: of products, in the shortest type, and of attention."""
        share = max(self.product_efficiency, self.attention_efficiency)
        if self.low is None:
            return self.peak_flop_per_s * share
        low = self.low.peak_flop_per_s * self.low.product_efficiency * max(self.low.routed_share, 1.0)
        return max(self.peak_flop_per_s * share, low)

    def in_type(self, low: LowProducts) -> "DeviceRates":
        """Return those of products of shorter numbers."""
        return replace(
            self,
            peak_flop_per_s=low.peak_flop_per_s,
            product_efficiency=low.product_efficiency,
            startup_ratio=low.startup_ratio,
            low=None,
        )


# Said of a device whose shares follow so.
UNCALIBRATED = "is uncalibrated for transformers: its efficiencies follow from those of fitted ones"


def _has_chip_of(device: Device, other: Device) -> bool:
    """Return whether two devices compute with the same chip at the same clock: by multiprocessors and peak."""
    numbers = device.num_multiprocessors, device.peak_flop_per_s.get("bf16")
    return None not in numbers and numbers == (other.num_multiprocessors, other.peak_flop_per_s.get("bf16"))


def device_shares(device: Device, dtype: str, rates: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the three shares of a device: as fitted to it, else as those of fitted devices tell.

    Parameters
    ----------
    device, dtype
        The device, and the type of the products.
    rates
        ``devices``, the shares of those that were fitted; ``unmeasured``, those of others; ``chips``, the fitted
        devices by name; ``products``, the share of products of devices of which few steps tell no other.

    Notes
    -----
    Of large products the share falls by a power of the FLOP that a joule must pay for at the peak, as power sets the
    clock; it is no more than products alone were measured at, there or on any fitted device. Without a published
    power it is the mean of fitted devices. Attention reaches the same part of it everywhere, and memory the same share.
    A device with the chip of a fitted one, whatever its memory and links, has that one's shares, less what a lower
    power costs: it has not been seen to be faster, but for those in ``products``.
    """
    if device.name in rates["devices"]:
        return dict(rates["devices"][device.name])
    law, told = rates["unmeasured"], rates.get("products", {})
    for name, chip in rates.get("chips", {}).items():
        if _has_chip_of(device, chip):
            slower = min(1.0, (device.power_w or inf) / (chip.power_w or inf)) ** law["exponent"]
            own = rates["devices"][name]
            shares = {share: own[share] * (1.0 if share == "memory_efficiency" else slower) for share in own}
            return {**shares, "product_efficiency": told.get(device.name, shares["product_efficiency"])}
    product = law["product_efficiency"]
    if device.power_w:
        product *= (peak_flop_per_s(device, dtype) / device.power_w / law["flop_per_j"]) ** -law["exponent"]
    product = min(product, law["most_product_efficiency"])
    if device.matmul_flop_per_s and "bf16" in device.peak_flop_per_s:
        product = min(product, device.matmul_flop_per_s / device.peak_flop_per_s["bf16"])
    product = told.get(device.name, product)
    return {
        "product_efficiency": product,
        "memory_efficiency": law["memory_efficiency"],
        "attention_efficiency": law["attention_ratio"] * product,
    }


@frozen
class Constants:
    """Figures common to all devices and all software, fitted once but for the last four."""

    startup_width: float  # inner width that a tile's start-up costs on an A100
    wave_share: float  # how much of the waste of unfilled waves is paid: 1 all, 0 none
    # what products with a vocabulary that is not filled up take longer for each :func:`misalignment` of a rank's part
    # of it, over their own time
    misaligned_cost: float
    misaligned_head_cost: float  # the same of unfused attention, and the size of a head
    # moved forward for one score of unfused attention; backward moves ``SCORE_BACKWARD`` times as many
    score_bytes: float
    # bytes that the kernels move that add up gradients, one for each tensor, over those that are counted
    accumulation_ratio: float
    head_floor_ratio: float  # launch floor of embedding, head and loss, over that of one layer's forward pass
    hop_s: float  # start-up of a collective, for each further rank of its ring
    tensor_floor_ratio: float  # what tensor parallelism adds to a layer's launch floor
    # share of the shorter of two that run side by side (computing, communication) that is not hidden by the longer
    contention: float
    # inside_efficiency, outside_efficiency: share of the bandwidth that collectives reach, inside a machine and between
    # machines
    inside_efficiency: float
    outside_efficiency: float
    # how fast the products of routed experts, many in one kernel of unlike rows, are over a single product
    routed_share: float = 1.0
    # share of the bandwidth between machines that all-to-alls of experts reach: every device sends along its own rail,
    # and waits for no ring. Assumed: DeepEP's kernels reach 0.87 of a card on four machines and 0.89 on eight (its
    # README), and steps tell as much, those of NCCL's all-to-all, too (research/transformer_fit/fit.py)
    exchange_efficiency: float = 0.85
    # and the most that a device sends so, which its multiprocessors hand on: with cards of 100 GB/s two machines of
    # B300 reach 40 to 55 (DeepEP, issue 590)
    exchange_bytes_per_s: float = 50e9
    # ``contention`` of experts' exchange beside another micro-batch, which few multiprocessors and the cards' own
    # engines do (DeepSeek-AI, arXiv 2412.19437, section 3.2.2), where a program sends each token once. Assumed, as
    # steps tell it (there)
    exchange_contention: float = 0.5
    # what a device waits whenever a (virtual) stage hands a micro-batch on or an error back, whatever is sent: sends
    # and receives are launched, and their events waited for. Assumed, of 10 to 100 us: hardly told by the rows
    send_s: float = 4e-5


@frozen
class Software:
    """What a training program does; fitted are its launch floor, and what older libraries reach on devices with fp8."""

    name: str  # of the program and its era
    launch_s: float  # floor of one layer's forward pass: the host's time to launch its kernels
    # whether attention is one kernel that skips masked scores; else scores are written to memory, all of them
    has_flash_attention: bool
    has_dropout: bool  # whether residual additions drop out
    has_fused_loss: bool  # whether the loss reads and writes the logits once each way
    accumulation_bytes: float  # moved per parameter and micro-batch to add up gradients
    gradient_bytes: float = 2.0  # of a gradient, as it is communicated
    optimizer_bytes: float = 30.0  # moved per parameter by the optimiser's step
    bucket_bytes: float = float("inf")  # largest piece of gradients that is sent at once
    reduces_every_microbatch: bool = False  # whether ZeRO-2 and 3 reduce the gradients of every micro-batch
    # whether copies of all states that parts of the ranks share (HSDP) are then added up once a step all the same:
    # ``outer_fsdp_group_grad_reduce`` of megatron_fsdp.py, Megatron-Core 0.16; FSDP2 does so in every micro-batch
    reduces_copies_once: bool = False
    shards_gradients: bool = True  # whether ZeRO-1 reduces gradients by a reduce-scatter; else by an all-reduce
    # whether a pipeline's stage reduces its gradients behind its last backward pass, and not beside it
    # (``perform_reduce_grad`` of torch/distributed/pipelining/stage.py, PyTorch 2.13)
    reduces_behind_stages: bool = False
    attention_ratio: float = 1.0  # how fast its flash attention is, over FlashAttention-2
    pads_vocabulary: bool = True  # whether the vocabulary is filled up to a width that every rank's tensor cores like
    # how much of all but attention selective recomputation repeats, in attention's place; 0: attention alone
    selective_share: float = 0.0
    # whether recomputation of a layer stops where nothing more is read: its last products are left out
    stops_early: bool = False
    element_passes: float = 1.0  # bytes that norms, activations and the like move, over those of one kernel for each
    fp8_device_ratio: float = 1.0  # how fast its products are on devices with fp8, over what the device's share says
    # whether a token that several experts of one machine take travels there once, and is copied there (DeepEP)
    sends_once: bool = False
    # whether it does so but where there are tensor groups
    sends_each_of_tensor: bool = False
    # the most that a device then receives of a group on several machines, whatever links inside reach: 24 of its
    # multiprocessors hand tokens on. DeepEP's kernels received 134 to 147 GB/s on two machines, a sixteenth of it from
    # the device itself, on H800 and on H200 alike, and so took half of a card (its README of 2025; its issues 285 and
    # 493); HybridEP's more (16 H100 tell no such limit: research/transformer_fit/fit.py)
    handed_bytes_per_s: float = 130e9
    # the most that it receives of a group inside one machine: DeepEP's kernels received 337 GB/s on links of 450 (its
    # issue 16; an eighth of it from the device itself), 290 without; HybridEP's have no such limit in any step
    exchanged_bytes_per_s: float = inf
    # groups of ranks whose sums it has switches of the network add up, where these can; None: of all
    summed_groups: tuple[str, ...] | None = None
    overlaps_transfers: bool = False  # whether interleaved stages send and receive beside computing
    # of a tied embedding's gradient, as first and last stage add it up; 0: as of any other
    tied_gradient_bytes: float = 0.0
    end_optimizer_bytes: float = 0.0  # what the optimiser's step moves more per parameter of embedding and head
    has_matrix_optimizer: bool = False  # whether it computes with whole matrices (:mod:`planner.models.optimizers`)
    weight_bytes: float = 2.0  # of a weight, as replicas gather it
    # of a number of the stream, as tensor groups gather it for products; they reduce two bytes
    gathered_bytes: float = 2.0
    # launch floor over ``launch_s``: kernels that were captured in a CUDA graph are launched together
    launch_ratio: float = 1.0
    # expert_floor_ratio, expert_launch_s: launch floor of a layer with routed experts, over that of others, and what
    # each expert on a device adds to it
    expert_floor_ratio: float = 1.0
    expert_launch_s: float = 0.0

    @property
    def gradient_result_bytes(self) -> float:
        """Moved for each number of a weight's gradient by the product that gives it.

        Two are written; where the product itself adds to the sum over micro-batches (``gradient_accumulation_fusion``
        of Megatron-LM), that is read and written. With few tokens an expert this is what binds.
        """
        return 2.0 if self.accumulation_bytes else 2 * self.gradient_bytes

    def stepped_by(self, optimizer: Optimizer) -> "Software":
        """Return the same with another optimiser than Adam.

        Parameters
        ----------
        optimizer
            What steps the weights. Where it needs whole matrices, ranks do not share gradients out.
        """
        return replace(
            self,
            optimizer_bytes=optimizer.moved_bytes(self.optimizer_bytes),
            end_optimizer_bytes=2 * (optimizer.end_state_bytes - optimizer.state_bytes),
            has_matrix_optimizer=optimizer.needs_matrices,
            shards_gradients=self.shards_gradients and not optimizer.needs_matrices,
        )


def misalignment(width: Ints | int) -> Floats:
    """Return how often a load is halved until it divides a width: 0 for multiples of 8 numbers, 3 for odd widths.

    Parameters
    ----------
    width
        In numbers of two bytes; any shape.

    >>> misalignment(np.array([128, 108, 225])).tolist()
    [0.0, 1.0, 3.0]
    """
    return np.asarray(np.log2(_ALIGNED // np.gcd(width, _ALIGNED)), dtype=float)


def move_s(moved_bytes: Floats | float, rates: DeviceRates) -> Floats:
    """Return the seconds of kernels that do nothing but read and write.

    Parameters
    ----------
    moved_bytes, rates
        How much, in any shape, and the device.
    """
    return np.asarray(moved_bytes / rates.moved_bytes_per_s, dtype=float)


def product_s(
    rows: Floats | float,
    inner: Floats | float,
    columns: Floats | float,
    *,
    count: Floats | float = 1.0,
    rates: DeviceRates,
    constants: Constants,
    element_bytes: float = 2.0,
    result_bytes: float = 2.0,
) -> Floats:
    """Return the seconds of ``count`` products of ``rows x inner`` by ``inner x columns`` numbers.

    Parameters
    ----------
    rows, inner, columns, count
        Of shapes that broadcast; > 0.
    rates, constants
        The device, and what is fitted for all.
    element_bytes
        Of a number of a factor.
    result_bytes
        Moved for a number of the result: two where it is written, more where it is added to what is there.
    """
    rows, inner, columns, count = np.broadcast_arrays(*map(np.float64, (rows, inner, columns, count)))
    work = _grid(rates, constants).padded_flop(rows, inner, columns, count)
    moved = (element_bytes * (rows * inner + inner * columns) + result_bytes * rows * columns) * count
    return longer_of(work / rates.multiplied_flop_per_s, move_s(moved, rates))


def _grid(rates: DeviceRates, constants: Constants) -> Grid:
    """Return how a device cuts products."""
    width, stated = constants.startup_width * rates.startup_ratio, _REFERENCE_FLOP_PER_S
    return Grid(
        processors=rates.num_multiprocessors,
        startup=startup_width(width, rates.peak_flop_per_s, rates.num_multiprocessors, stated_flop_per_s=stated),
        waves=constants.wave_share,
        loads=USUAL_LOADS,
    )


# -- a transformer's layers, embedding and head ------------------------------------------------------------------------

_BYTES = 2  # of an activation
SCORE_BACKWARD = 1.7  # bytes moved backward over forward, per score: counted below
FLASH_BACKWARD = 2.5  # five products for two: the scores are computed again (T. Dao, arXiv 2307.08691, section 3)
_LOSS_BYTES = 42.0  # of one logit both ways, not fused: in four bytes, read or written ten times, once in two
_OF_DENSE = ("tensor", "sequence_parallel")  # what products but routed experts' ask for, beside samples of a rank
_OF_ROUTED = ("expert", "expert_tensor")  # what those ask for, beside the tokens of a rank
_EDGE_KEYS = 64.0  # half of the 128 keys of a tile of flash attention
_DROPOUT_BYTES = 5  # read, write, and the mask
_LAST = ("feed_forward.down", "feed_forward.experts.down", "feed_forward.shared.down", "feed_forward.latent_up")
_ENDS = ("attention.output", *scans.ROW_SPLIT)  # the same of layers without a feed-forward part
_ROW_PARALLEL = (*_ENDS, *_LAST[:-1], "projector.down")  # the last is whole on every device
_REPLICATED = (
    "attention.query_down",
    "attention.key_value_down",
    "feed_forward.router",
    "feed_forward.shared.gate",
    "feed_forward.latent_down",
    "feed_forward.latent_up",
    "patch_embedding",
)


class Speeds(NamedTuple):
    """What the seconds of operators rest on: what device and program reach, and what all have in common."""

    rates: DeviceRates
    software: Software
    constants: Constants


@frozen
class LayerSeconds:
    """Seconds of one layer and micro-batch on the device; ``attention_s`` and ``last_s`` are part of ``forward_s``.

    ``last_s``: of what no gradient of the layer reads: its last products, and the addition behind them. ``modules_s``:
    what some sets of modules compute again, shape (sets, n); the sets themselves are told apart from it.
    """

    forward_s: Floats
    backward_s: Floats
    attention_s: Floats
    last_s: Floats
    modules_s: Floats

    def again_s(
        self, recompute: Ints, software: Software, modules: Ints | None = None, module_sets: Sequence[int] = ()
    ) -> Floats:
        """Return what the backward pass computes again.

        Parameters
        ----------
        recompute
            A :class:`planner.models.layouts.Recompute` for each layout, shape (n,).
        software
            What it repeats of a layer.
        modules, module_sets
            The set of modules of each layout, and the sets that ``modules_s`` is of.
        """
        whole = self.forward_s - self.last_s if software.stops_early else self.forward_s
        share = software.selective_share
        some = share * (self.forward_s - self.attention_s) if share else self.attention_s
        for row, number in enumerate(module_sets):
            some = np.where(modules == number, self.modules_s[row], some)
        return np.where(recompute == Recompute.FULL, whole, np.where(recompute == Recompute.SELECTIVE, some, 0.0))


def layer_seconds(
    transformer: Transformer,
    kind: LayerKind,
    layouts: Layouts,
    speeds: Speeds,
    *,
    expert_imbalance: float = 1.0,
    module_sets: Sequence[int] = (),
    known: dict[TransformerOperator, tuple[Floats, Floats]] | None = None,
) -> LayerSeconds:
    """Return the seconds of one layer of a kind, gradients' accumulation left out.

    Parameters
    ----------
    transformer, kind
        The network, and the kind of layer.
    layouts
        n of them, whose degrees and micro-batch count; the result is of shape (n,).
    speeds
        Of device and program, and what all have in common.
    expert_imbalance
        Tokens of the fullest rank's experts, over the mean; >= 1.
    module_sets
        Of modules that are computed again by themselves, whose seconds are asked for: indices into
        :data:`planner.models.recomputation.MODULE_SETS`.
    known
        Seconds of operators on the same device in the same layouts, forward and backward, to which those met here are
        added: layers of other kinds share some.

    Notes
    -----
    Unfused attention writes each score by the first product, reads and writes it by softmax and by dropout (with a mask
    of one byte), and reads it by the second product: 11 bytes. Backward moves 19: counted for the kernels of
    Megatron-LM. Fused attention keeps its scores on the chip (T. Dao, arXiv 2307.08691).
    """
    operators, has_second = block_operators(transformer, kind), KINDS[kind].feed_forward != "none"
    forward, backward, last = (np.zeros(len(layouts)) for _ in range(3))
    modules, again = (
        np.zeros((len(module_sets), len(layouts))),
        [again_names(transformer, kind, n) for n in module_sets],
    )
    # Products are computed once for each combination that they ask for.
    samples = layouts.microbatch / layouts.context
    dense, of_dense = layouts.distinct(_OF_DENSE, samples)
    routed, of_routed = layouts.distinct(_OF_ROUTED, samples, layouts.expert_share)
    few, few_routed = layouts.of(dense), layouts.of(routed)
    met = {} if known is None else known
    low = speeds.rates.low
    for one in operators:
        if one.name.startswith("attention") and one.kind in ("attention", "softmax"):
            continue
        tokens = expert_imbalance if one.name.startswith(ROUTED) else 1.0
        if one in met:
            ahead, back = met[one]
        elif one.kind in (scans.SCAN, "index"):
            is_scan = one.kind == scans.SCAN
            ahead, back = (_scan_s if is_scan else _index_s)(one, layouts, speeds)
        elif one.kind == "loss":
            ahead = back = _loss_s(one, layouts, speeds) / 2
        elif one.product is not None and one.name.startswith(ROUTED):
            whole = _block_products_s(one, few_routed, speeds, tokens)
            apart = _biases_s(transformer, one, few_routed, speeds, tokens)
            ahead, back = ((way + more)[of_routed] for way, more in zip(whole, apart, strict=True))
        elif one.product is not None:
            ahead, back = (seconds[of_dense] for seconds in _block_products_s(one, few, speeds))
        else:
            moved = tokens if low is None or not is_fused_with_experts(one) else tokens * low.routed_moved_ratio
            ahead, back = (moved * way for way in _element_s(one, layouts, speeds))
        met[one] = ahead, back
        forward, backward = forward + ahead, backward + back
        is_last = one.name in (_LAST if has_second else _ENDS) or one == operators[-1]
        last = last + ahead if is_last else last
        for row, names in enumerate(again):
            if one.name in names:
                modules[row] += ahead
    tuned, tuned_back = _tuning_s(transformer, kind, layouts, speeds)
    forward, backward = forward + tuned, backward + tuned_back
    attention, attention_back = _attention_s(transformer, kind, layouts, speeds)
    for row, number in enumerate(module_sets):
        if "core_attn" in MODULE_SETS[number]:
            modules[row] += attention
    has_backward = transformer.learning_of(kind) != "front"
    return LayerSeconds(
        forward_s=forward + attention,
        backward_s=(backward + attention_back) * has_backward,
        attention_s=attention,
        last_s=last,
        modules_s=modules,
    )


def _block_products_s(
    one: TransformerOperator, layouts: Layouts, speeds: Speeds, tokens: float = 1.0
) -> tuple[Floats, Floats]:
    """Return the same of an operator of a block, which may multiply short numbers in all but some layers."""
    low = speeds.rates.low
    if low is None or not has_low_product(one):
        return _products_s(one, layouts, speeds, tokens)
    short = _products_s(one, layouts, speeds, tokens, low)
    if not low.wide_share:
        return short
    wide = _products_s(one, layouts, speeds, tokens)
    ahead, back = ((1 - low.wide_share) * few + low.wide_share * more for few, more in zip(short, wide, strict=True))
    return ahead, back


def _products_s(
    one: TransformerOperator, layouts: Layouts, speeds: Speeds, tokens: float = 1.0, low: LowProducts | None = None
) -> tuple[Floats, Floats]:
    """Return the seconds of an operator's product, and of the two that give the gradients of its input and weights.

    ``tokens``: how many there are, over those that the operator says. ``low``: the type that it multiplies, into which
    its input and the gradient of its output are turned first.
    """
    assert one.product is not None, "asked of products alone"
    rates, software, constants = speeds
    rows = one.product.rows * layouts.microbatch / layouts.context
    inner, columns, count = (np.asarray(n) for n in (one.product.inner, one.product.columns, one.product.count))
    if one.name.startswith(ROUTED):
        rows, count = rows * layouts.expert_share, count / layouts.expert
    split = layouts.expert_tensor if one.name.startswith(ROUTED) else layouts.tensor
    if one.name.startswith(INDEXER):
        pass  # whole on every device, and of all its tokens
    elif one.name in _REPLICATED:
        rows = rows / layouts.stream_split
    elif one.name in _ROW_PARALLEL:
        inner = inner / split
    else:
        columns = columns / split
    rows = rows * tokens
    share = constants.routed_share if one.name.startswith(ROUTED) else 1.0
    reached, element_bytes = rates, float(_BYTES)
    if low is not None:
        share = low.routed_share if one.name.startswith(ROUTED) else 1.0
        reached, element_bytes = rates.in_type(low), low.type.element_bytes
    forward, input_gradient, weight_gradient = (
        product_s(
            *shape,
            count=count,
            rates=reached,
            constants=constants,
            element_bytes=element_bytes,
            result_bytes=result_bytes,
        )
        / share
        for shape, result_bytes in (
            ((rows, inner, columns), float(_BYTES)),
            ((rows, columns, inner), float(_BYTES)),
            ((inner, rows, columns), software.gradient_result_bytes),
        )
    )
    if one.is_frozen:
        weight_gradient = np.zeros(1)
    if low is None:
        return forward, input_gradient + weight_gradient
    cast_ratio = low.cast_ratio * (low.routed_moved_ratio if one.name.startswith(ROUTED) else 1.0)
    turned, turned_back = (
        move_s(cast_ratio * low.type.cast_bytes * rows * width * count, rates) for width in (inner, columns)
    )
    return forward + turned, input_gradient + weight_gradient + turned_back


# Moved for a number of experts' outputs to weigh their biases and add them, in four bytes and expert by expert: the
# product and the sum, the pieces joined, and narrowed; backward pieces joined, numbers widened and narrowed, and the
# gradients of biases and weights, each by a product and a sum (``TEGroupedMLP._apply_bias`` of Megatron-Core 0.16).
_BIAS_BYTES = (28.0, 40.0)
# The same for a number that gates clip first: the clips, and both halves joined; backward what was clipped is found and
# chosen, and the halves joined (``weighted_bias_quick_geglu_impl`` there, in front of the kernel of the gates).
_CLIP_BYTES = (8.0, 15.0)


def _biases_s(
    transformer: Transformer, one: TransformerOperator, layouts: Layouts, speeds: Speeds, tokens: float
) -> tuple[Floats | float, Floats | float]:
    """Return what routed experts' biases and clipped gates move behind a product, forward and backward.

    Nothing where the kernel of the products does it. The first product adds its biases itself.
    """
    low, is_last = speeds.rates.low, one.name in _LAST
    is_fused = low is not None and low.routed_moved_ratio != 1.0
    is_apart = transformer.has_biases if is_last else transformer.numerics.activation_limit is not None
    if one.product is None or is_fused or not is_apart:
        return 0.0, 0.0
    rows = one.product.rows * one.product.count * layouts.expert_share / (layouts.expert * layouts.context)
    numbers = tokens * rows * layouts.microbatch * one.product.columns / (1 if is_last else layouts.expert_tensor)
    ahead, back = (move_s(moved * numbers, speeds.rates) for moved in (_BIAS_BYTES if is_last else _CLIP_BYTES))
    return ahead, back


def _scan_s(one: TransformerOperator, layouts: Layouts, speeds: Speeds) -> tuple[Floats, Floats]:
    """Return the seconds of products over chunks of tokens, forward and backward: the longer of FLOP and bytes.

    Heads are split over tensor ranks and, by an exchange before and behind, over context ranks. The products reach what
    fused attention does: an assumption, as no step of such a network is in the fit.
    """
    assert one.product is not None, "asked of products alone"
    rates, software, constants = speeds
    count = one.product.count * layouts.microbatch / (layouts.tensor * layouts.context)
    shape = np.broadcast_arrays(one.product.rows, one.product.inner, one.product.columns, count)
    flop = _grid(rates, constants).padded_flop(*shape)
    moved = (one.input_elements + one.output_elements) * layouts.microbatch / (layouts.tensor * layouts.context)
    reached = rates.peak_flop_per_s * rates.attention_efficiency * software.attention_ratio
    forward = longer_of(flop / reached, move_s(_BYTES * moved, rates))
    return forward, FLASH_BACKWARD * forward


def _index_s(one: TransformerOperator, layouts: Layouts, speeds: Speeds) -> tuple[Floats, Floats]:
    """Return the seconds of an indexer's scores, forward and backward: every tensor rank computes all of its heads.

    They are multiplied in the numbers of other products (fp8 in DeepSeek's kernels) and reach of the peak what fused
    attention does: an assumption, as no step of such a network is in the fit.
    """
    rates, software, constants = speeds
    reached = (rates if rates.low is None else rates.in_type(rates.low)).peak_flop_per_s
    reached *= rates.attention_efficiency * software.attention_ratio
    assert one.product is not None, "asked of products alone"
    rows, inner, count = one.product.rows, one.product.inner, one.product.count
    keys = one.num_multiply_adds / (rows * inner * count)  # in the mean, of those that are not masked
    shape = np.broadcast_arrays(rows / layouts.context, inner, keys, count * layouts.microbatch)
    forward = _grid(rates, constants).padded_flop(*shape) / reached
    return forward, forward * one.backward_flop / one.forward_flop


def _tuning_s(
    transformer: Transformer, kind: LayerKind, layouts: Layouts, speeds: Speeds
) -> tuple[Floats | float, Floats | float]:
    """Return the seconds of one layer's adapters, and of widening matrices that are kept in four bits, both ways."""
    tuning = transformer.trained.adapters
    if tuning is None:
        return 0.0, 0.0
    forward = backward = np.zeros(len(layouts))
    for one in block_operators(transformer, kind):
        if one.adapters:
            ahead, back = _adapters_s(one, layouts, speeds)
            forward, backward = forward + ahead, backward + back
    if tuning.is_quantised:
        held = sum(matrix_parameters(transformer, kind, layouts))
        widened = move_s((QUANTISED_BYTES + FROZEN_BYTES) * held, speeds.rates)
        forward, backward = forward + widened, backward + widened
    return forward, backward


def _adapters_s(one: TransformerOperator, layouts: Layouts, speeds: Speeds) -> tuple[Floats, Floats]:
    """Return the seconds of an operator's adapters, forward and backward: thin products, and additions to its result.

    Beside a matrix that is split by rows the first of both has its rows split, else the second one its columns, and the
    rank is split where neither is (Megatron-Bridge). Leaves out dropout, and the exchange of a rank's numbers.
    """
    assert one.product is not None, "asked of products alone"
    rows = one.product.rows * layouts.microbatch / layouts.context
    rates, constants = speeds.rates, speeds.constants
    by_rows, split = one.name in _ROW_PARALLEL, layouts.tensor
    inner = one.product.inner / (split if by_rows else 1)
    forward = backward = np.zeros(len(layouts))
    for rank, width in one.adapters:
        columns, share = width / (1 if by_rows else split), np.maximum(rank / (1 if by_rows else split), 1.0)
        for shape in ((rows, inner, share), (rows, rank, columns)):
            n, k, m = shape
            forward = forward + product_s(n, k, m, rates=rates, constants=constants)
            backward = backward + product_s(n, m, k, rates=rates, constants=constants)
            backward = backward + product_s(k, n, m, rates=rates, constants=constants)
        forward = forward + move_s(3.0 * _BYTES * rows * columns, rates)
        backward = backward + move_s(3.0 * _BYTES * rows * inner, rates)
    return forward, backward


def _attention_s(transformer: Transformer, kind: LayerKind, layouts: Layouts, speeds: Speeds) -> tuple[Floats, Floats]:
    """Return the seconds of scores, softmax and context, forward and backward; none of a layer without attention."""
    parts = KINDS[kind]
    if not parts.has_attention:
        return np.zeros(len(layouts)), np.zeros(len(layouts))
    rates, software, constants = speeds
    operators = block_operators(transformer, kind)
    scores, context = (one.product for one in operators if one.product and one.kind == "attention")
    heads = scores.count * layouts.microbatch / layouts.tensor
    queries = scores.rows / layouts.context
    if software.has_flash_attention:
        # A tile is some queries of a head, which goes over all keys, or over half of them, for both products. Of a
        # window it goes over half a tile more: a second edge, of which a part is masked.
        keys = transformer.attended_pairs("attention") / transformer.sequence_length
        if parts.mixer == "window":
            own = transformer.attended_pairs("window") / transformer.sequence_length
            whole = transformer.scored_pairs / transformer.sequence_length
            keys = min(own + _EDGE_KEYS, whole)
        inner = keys * (1 + scores.inner / context.columns)
        reached = rates.peak_flop_per_s * rates.attention_efficiency * software.attention_ratio
        grid = _grid(rates, constants)
        shapes = (np.broadcast_arrays(queries, times * inner, context.columns, heads) for times in (1, FLASH_BACKWARD))
        forward, backward = (grid.padded_flop(*shape) / reached for shape in shapes)
        return forward, backward
    num_scores = heads * queries * scores.columns  # a masked one is computed all the same
    products = 2 * num_scores * (scores.inner + context.columns) / rates.multiplied_flop_per_s
    moved = move_s(num_scores * constants.score_bytes, rates)
    slow = 1 + constants.misaligned_head_cost * misalignment(transformer.head_size)
    return slow * (products + moved), slow * (2 * products + SCORE_BACKWARD * moved)


def _element_s(one: TransformerOperator, layouts: Layouts, speeds: Speeds) -> tuple[Floats, Floats]:
    """Return the seconds of an operator that moves memory, forward and backward.

    What an addition reads another reads as well: the gradients of both are added up, which takes an addition.
    """
    rates, software = speeds.rates, speeds.software
    ways = MOVED[operator_kind(one.kind)]
    if one.kind == "residual":
        ways = (ways[0], ways[0])
    if one.name.startswith(INDEXER):
        layouts = replace(layouts, tensor=np.ones_like(layouts.tensor))
    # Tensor parallelism does not split norms and additions, but sequence parallelism does.
    is_whole = one.kind in ("norm", "residual", "embedding", "multiply") and one.name not in scans.BY_HEADS
    split = layouts.stream_split if is_whole else layouts.tensor
    tokens = layouts.microbatch / (split * layouts.context)
    passes = 1.0 if one.kind == "embedding" else software.element_passes
    per_byte = tokens * passes
    dropped = _DROPOUT_BYTES * one.output_elements if one.kind == "residual" and software.has_dropout else 0
    ahead, back = (
        move_s((_BYTES * (read * one.input_elements + written * one.output_elements) + dropped) * per_byte, rates)
        for read, written in ways
    )
    return ahead, back


def _loss_s(one: TransformerOperator, layouts: Layouts, speeds: Speeds) -> Floats:
    """Return the seconds of a loss over logits that are split by tensor, both ways."""
    moved_bytes = 4.0 * _BYTES if speeds.software.has_fused_loss else _LOSS_BYTES
    logits = one.input_elements * layouts.microbatch / (layouts.tensor * layouts.context)
    return move_s(logits * moved_bytes, speeds.rates)


def embedding_s(transformer: Transformer, layouts: Layouts, speeds: Speeds) -> Floats:
    """Return the seconds of the embedding of one micro-batch, both ways, shape (n,).

    Parameters
    ----------
    transformer, layouts, speeds
        As for :func:`layer_seconds`.
    """
    total = np.zeros(len(layouts))
    for one in embedding_operators(transformer):
        if one.product is not None:
            ahead, back = _products_s(one, layouts, speeds)
            total = total + ahead + back * one.has_backward
        elif one.kind != "input":
            ahead, back = _element_s(one, layouts, speeds)
            is_still = not one.has_backward or (one.is_frozen and one.kind == "embedding")
            total = total + ahead + (0.0 if is_still else back)
    return total


def head_s(transformer: Transformer, layouts: Layouts, speeds: Speeds) -> Floats:
    """Return the seconds of the head and the loss of one micro-batch, both ways; the vocabulary is split by tensor.

    Parameters
    ----------
    transformer, layouts, speeds
        As for :func:`layer_seconds`; the result is of shape (n,).
    """
    total = np.zeros(len(layouts))
    for one in head_operators(transformer):
        if one.product is not None:
            slow: Floats | float = 1.0
            if not speeds.software.pads_vocabulary:
                off = misalignment(transformer.vocabulary_size // layouts.tensor)
                slow = 1 + speeds.constants.misaligned_cost * off
            ahead, back = _products_s(one, layouts, speeds)
            total = total + slow * (ahead + back * one.has_backward)
        elif one.kind == "loss":
            total = total + _loss_s(one, layouts, speeds)
        else:
            ahead, back = _element_s(one, layouts, speeds)
            total = total + ahead + back * one.has_backward
    return total
