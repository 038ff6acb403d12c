"""Seconds of single kernels: matrix products, attention, and what only moves memory.

A product takes as long as its multiply-adds at a share of the device's peak, or as its operands take to move, whichever
is longer (the roofline: S. Williams, A. Waterman, D. Patterson, Communications of the ACM 52(4), 2009,
doi:10.1145/1498765.1498785). Three things make small or odd products slower:

- *Waves.* The result is cut into tiles, one at a time for each multiprocessor, and the last wave of tiles is not full
  (NVIDIA, Matrix Multiplication Background User's Guide, sections "Tile quantization" and "Wave quantization").
- *Start-up.* A tile pays for its first loads and its last stores, whatever its inner width. That time is the same on
  each multiprocessor, so in inner width it grows with the multiplications that one does a second.
- *Alignment.* Tensor cores want widths that are multiples of 8 numbers of two bytes (same guide, "Tensor Core
  requirements"); other widths fall back to slower kernels.

Products of less than half a wave of tiles are taken to be split among all multiprocessors whatever their inner width:
too quick for tiny ones, which launching covers. Leaves out caches between kernels, clocks that sink under load (they
are in the fitted shares), and sparsity.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Constants",
    "DeviceRates",
    "Floats",
    "attention_s",
    "longer_of",
    "misalignment",
    "misalignments",
    "move_s",
    "product_s",
]

Floats = NDArray[np.float64]

_ALIGNED = 8  # numbers of two bytes in the 16 bytes that a load takes at once
_TILES = ((256, 128, 1.0), (128, 128, 0.85), (128, 64, 0.72))  # rows, columns, share of the largest tile's rate
_FEW_TILES = 0.5  # of one wave; below it the inner width is split among the idle multiprocessors
_SPLIT = 0.6  # share of the largest tile's rate that a split product reaches, its sums included
_REFERENCE_FLOP_PER_S = 312e12 / 108  # of one multiprocessor of the A100, which the start-up is stated for
_SHARPNESS = 6  # of the change from one bound to the other


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """What is published of a device, and the three shares of it that are fitted.

    Attributes
    ----------
    name
        Of the device.
    peak_flop_per_s
        Dense, of the data type that the products are in.
    memory_bandwidth_bytes_per_s
        Published.
    num_multiprocessors
        Published.
    product_efficiency
        Share of the peak that large products reach.
    memory_efficiency
        Share of the memory's bandwidth that kernels which only move memory reach.
    attention_efficiency
        Share of the peak that fused (flash) attention reaches.
    """

    name: str
    peak_flop_per_s: float
    memory_bandwidth_bytes_per_s: float
    num_multiprocessors: int
    product_efficiency: float
    memory_efficiency: float
    attention_efficiency: float

    @property
    def moved_bytes_per_s(self) -> float:
        """Bytes a second that a kernel moves."""
        return self.memory_bandwidth_bytes_per_s * self.memory_efficiency

    @property
    def multiplied_flop_per_s(self) -> float:
        """FLOP a second of a large product."""
        return self.peak_flop_per_s * self.product_efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Figures common to all devices and all software, fitted once.

    Attributes
    ----------
    startup_width
        Inner width that a tile's start-up costs on an A100.
    wave_share
        How much of the waste of unfilled waves is paid: 1 all, 0 none (libraries choose among many tiles).
    misaligned_cost
        What products with a vocabulary that is not filled up take longer for each :func:`misalignment` of a rank's part
        of it, over their own time.
    misaligned_head_cost
        The same of unfused attention, and the size of a head.
    score_bytes
        Moved forward for one score of unfused attention; backward moves ``SCORE_BACKWARD`` times as many.
    element_ratio
        Bytes that norms, activations and residual additions move, over those that are counted.
    accumulation_ratio
        The same of the kernels that add up gradients, one for each tensor.
    head_floor_ratio
        Launch floor of embedding, head and loss, over that of one layer's forward pass.
    hop_s
        Start-up of a collective, for each further rank of its ring.
    tensor_floor_ratio
        What tensor parallelism adds to a layer's launch floor.
    contention
        Share of the shorter of two that run side by side (computing, exchange) that is not hidden by the longer.
    inside_efficiency, outside_efficiency
        Share of the bandwidth that collectives reach, inside a machine and between machines.
    """

    startup_width: float
    wave_share: float
    misaligned_cost: float
    misaligned_head_cost: float
    score_bytes: float
    element_ratio: float
    accumulation_ratio: float
    head_floor_ratio: float
    hop_s: float
    tensor_floor_ratio: float
    contention: float
    inside_efficiency: float
    outside_efficiency: float


def longer_of(first: Floats | float, second: Floats | float, sharpness: float = _SHARPNESS) -> Floats:
    """Return about the larger of two times: a little more where they are close, as work is then never all hidden.

    Notes
    -----
    The norm ``(x**n + y**n) ** (1/n)``, n being the sharpness: at least the larger, at most 2 ** (1/n) times it, which
    for 6 is 1.12. Own choice; a sharp maximum is what it tends to.
    """
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    share = np.divide(smaller, larger, out=np.zeros(np.shape(larger)), where=np.asarray(larger) > 0)
    return np.asarray(larger * (1 + share**sharpness) ** (1 / sharpness), dtype=float)


def misalignment(width: int) -> int:
    """Return how often a load is halved until it divides a width: 0 for multiples of 8 numbers, 3 for odd widths.

    >>> [misalignment(width) for width in (128, 108, 225)]
    [0, 1, 3]
    """
    return int(misalignments(width))


def misalignments(widths: Floats | int) -> Floats:
    """Return :func:`misalignment` of many widths."""
    return np.asarray(np.log2(_ALIGNED // np.gcd(np.asarray(widths, dtype=np.int64), _ALIGNED)), dtype=float)


def move_s(moved_bytes: Floats | float, rates: DeviceRates) -> Floats:
    """Return the seconds of kernels that do nothing but read and write so many bytes."""
    return np.asarray(moved_bytes / rates.moved_bytes_per_s, dtype=float)


def product_s(
    rows: Floats | float,
    inner: Floats | float,
    columns: Floats | float,
    *,
    count: Floats | float = 1.0,
    rates: DeviceRates,
    constants: Constants,
) -> Floats:
    """Return the seconds of ``count`` products of ``rows x inner`` by ``inner x columns`` numbers of two bytes.

    Notes
    -----
    ``w waves + (1 - w) ideal``, times ``1 + startup / inner``, and at least about as long as its bytes take. The
    tile is the fastest of three for each product. More than eight waves are taken to fill the last one half on average.
    """
    rows, inner, columns, count = (np.asarray(one, dtype=float) for one in (rows, inner, columns, count))
    flop = 2 * rows * inner * columns * count
    ideal = flop / rates.multiplied_flop_per_s
    waves = np.full(np.shape(ideal), np.inf)
    for tile_rows, tile_columns, share in _TILES:
        tiles = np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) * count / rates.num_multiprocessors
        whole = np.where(tiles > 8, tiles + 0.5, np.ceil(tiles)) * rates.num_multiprocessors
        took = 2 * whole * tile_rows * tile_columns * inner / (rates.multiplied_flop_per_s * share)
        waves = np.minimum(waves, np.where(tiles < _FEW_TILES, ideal / (share * _SPLIT), took))
    quantised = constants.wave_share * waves + (1 - constants.wave_share) * ideal
    rate = rates.peak_flop_per_s / rates.num_multiprocessors
    startup = constants.startup_width * rate / _REFERENCE_FLOP_PER_S
    moved = 2 * (rows * inner + inner * columns + rows * columns) * count
    return longer_of(quantised * (1 + startup / inner), move_s(moved, rates))


def attention_s(flop: Floats | float, rates: DeviceRates) -> Floats:
    """Return the seconds of fused attention (T. Dao, arXiv 2307.08691), which keeps its scores on the chip."""
    return np.asarray(flop / (rates.peak_flop_per_s * rates.attention_efficiency), dtype=float)
