"""What every kernel's seconds rest on, of any network and family: tiles and waves of products, and bytes moved.

A kernel takes about the longer of its arithmetic and of moving its bytes (the roofline: S. Williams, A. Waterman,
D. Patterson, CACM 52(4), 2009, doi:10.1145/1498765.1498785). Three things make small or odd products slower:

- *Tiles.* The result is cut into tiles, each of which one multiprocessor computes whole.
- *Waves.* Each multiprocessor computes one tile at a time, and the last wave of tiles is not full (NVIDIA, Matrix
  Multiplication Background User's Guide, "Tile quantization", "Wave quantization").
- *Start-up.* A tile pays for its first loads and its last stores, whatever its inner width. That time is the same on
  each multiprocessor, so in inner width it grows with the multiplications that one does a second.

What of this is paid, and what share of a device's peak and bandwidth is reached, is fitted: to kernels and steps of any
network (:mod:`planner.models.kernels`), and to steps of the programs that train transformers
(:mod:`planner.models.compute`).
"""

import math

import numpy as np
from numpy.typing import NDArray

from planner.cluster import TRAINING_DTYPES, Device
from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen

# -- what is published of a device -------------------------------------------------------------------------------------

# Energy of an fp32 FLOP in a large product at full clock, everything on the board included but what it draws at rest,
# by process. 16 and 12 nm: what P4 and P100, T4 and V100 reach; 7 nm: at most, for an A100 of 250 W is not
# bound; 5 nm: an RTX 4090 reaches 60 to 65 TFLOP/s at 450 W.
_FLOP_J = {16.0: 36e-12, 12.0: 16.5e-12, 7.0: 12.6e-12, 5.0: 7e-12}
# Of that energy what a lower clock does not save, and the rest falls by the square of the voltage, which follows the
# clock: by P4 and T4, which run at about half their clock.
_WHATEVER_CLOCK = 0.7
INLINE_ECC = 0.85  # of the published bandwidth, where check bits lie among the data: GDDR memory of boards for servers
_REST_W = 15.0  # memory and fans at rest
_POWER_SHARPNESS = 24.0  # of the change from the peak to what the power allows: own choice
_MOST_SHARE = 0.9  # of peak and bandwidth, on devices that nothing was fitted to: no GPUs, and AMD's
_USUAL_BANDWIDTH, _USUAL_PEAKS = 2.039e12, (312e12, 19.5e12)  # of an A100; in 16 bits, in fp32
WHOLE = ("fp32", "tf32")  # data types of four bytes; the others are short


def peak_flop_per_s(device: Device, dtype: str) -> float:
    """Return the device's peak for a data type.

    Parameters
    ----------
    device, dtype
        A device of the table, and a type such as ``bf16``.

    Raises
    ------
    ModelError
        If the table has no rate of that type for the device; the message lists those it has.
    """
    peak = device.peak_flop_per_s.get(dtype)
    if peak is None:
        known = ", ".join(sorted(set(device.peak_flop_per_s) & set(TRAINING_DTYPES))) or "none at all"
        raise ModelError(f"{device.name!r} has no {dtype} rate (known: {known}). Set dnn.dtype to one of them.")
    return peak


@frozen
class DeviceLimits:
    """What is published of a device."""

    # product_flop_per_s, vector_flop_per_s: peak of products in the type that is computed in, and of what is no product
    product_flop_per_s: float
    bytes_per_s: float  # of its memory: :data:`INLINE_ECC` of what is published where check bits lie among the data
    # 1 where it is not known: then no wave is unfilled, and tiles start up as on the device that was fitted
    num_multiprocessors: int
    vector_flop_per_s: float = math.inf
    sustained_flop_per_s: float = math.inf  # the most that the board's power allows (:func:`power_flop_per_s`)
    # of peak and bandwidth, whatever the shares say: those of GPUs hold clocks beyond the published ones
    most_share: float = math.inf

    @classmethod
    def of(cls, device: Device, dtype: str) -> "DeviceLimits":
        """Return those of a device.

        Parameters
        ----------
        device, dtype
            The device, and the type that is computed in.

        Raises
        ------
        ModelError
            If the device has no rate of that type.
        """
        peak = peak_flop_per_s(device, dtype)
        sustained = math.inf
        if dtype == "fp32" and device.power_w is not None and device.process_nm is not None:
            sustained = power_flop_per_s(device.power_w, device.process_nm, peak)
        return cls(
            product_flop_per_s=peak,
            vector_flop_per_s=device.peak_flop_per_s.get("fp32", peak),
            bytes_per_s=reached_bytes_per_s(device, peak, dtype),
            num_multiprocessors=device.num_multiprocessors or 1,
            sustained_flop_per_s=sustained,
            most_share=math.inf if device.kind == "gpu" and not device.is_amd else _MOST_SHARE,
        )


def reached_bytes_per_s(device: Device, peak_flop_per_s: float, dtype: str) -> float:
    """Return the bandwidth of a device's memory, less check bits; where it is not known, an A100's for its peak.

    Parameters
    ----------
    device, peak_flop_per_s, dtype
        The device, and its peak in the type that is computed in.
    """
    if math.isinf(device.memory_bandwidth_bytes_per_s):
        return peak_flop_per_s * _USUAL_BANDWIDTH / _USUAL_PEAKS[dtype in WHOLE]
    return device.memory_bandwidth_bytes_per_s * (INLINE_ECC if device.has_inline_ecc else 1.0)


def power_flop_per_s(power_w: float, process_nm: float, peak_flop_per_s: float) -> float:
    """Return the fp32 FLOP a second that a board's power pays for, whatever its peak.

    Parameters
    ----------
    power_w
        The board's published limit.
    process_nm
        The process that the device is made in, as it is sold (NVIDIA: P 16, V and T 12, A100 7, L and H 5).
    peak_flop_per_s
        At full clock.

    Notes
    -----
    The ``r`` with ``r e (c + (1 - c) (r / peak)^2) = power``. Between processes that are known the energy ``e`` is a
    power law of the size; beyond them that of the nearest. Zeros cost less: their products are bound by the peak.
    """
    known = sorted(_FLOP_J)
    energies = [math.log(_FLOP_J[size]) for size in known]
    energy = math.exp(float(np.interp(math.log(process_nm), np.log(known), energies)))
    paid = max(power_w - _REST_W, 0.0) / energy
    least, most = 0.0, paid / _WHATEVER_CLOCK
    for _ in range(60):
        middle = (least + most) / 2
        saved = _WHATEVER_CLOCK + (1 - _WHATEVER_CLOCK) * (middle / peak_flop_per_s) ** 2
        least, most = (middle, most) if middle * saved < paid else (least, middle)
    return least


def least_of(rates: Floats, bound: float) -> Floats:
    """Return about the smaller of the two, where they are alike a little less: power binds some of the time."""
    return np.asarray(rates * (1 + (rates / bound) ** _POWER_SHARPNESS) ** (-1 / _POWER_SHARPNESS), dtype=float)


# -- bytes, tiles and waves --------------------------------------------------------------------------------------------

# How often an operator moves what it reads and what it writes: forward, and backward; counted for the kernels of
# PyTorch 1.12 to 2.13, aten/src/ATen/native/cuda.
MOVED = {
    "convolution": ((1, 1), (1, 1)),  # of each of the two gradients
    "matmul": ((1, 1), (1, 1)),
    "batched_matmul": ((1, 1), (1, 1)),
    "recurrent": ((1, 1), (1, 1)),
    "attention": ((1, 1), (2, 2)),
    "batch_norm": ((1, 1), (2, 1)),  # its second look at its input finds most in the cache
    "norm": ((1, 1), (2, 1)),
    "group_norm": ((1, 1), (4, 1)),  # gradients of scales, then of the input: two kernels that read the same
    "softmax": ((1, 1), (1, 2)),
    "element_wise": ((1, 1), (2, 1)),
    "scaling": ((1, 1), (1, 1)),
    "multiplication": ((1, 1), (1, 4)),  # a gradient of each factor: together two of each factor, two of the output
    "addition": ((1, 1), (0, 0)),
    "pooling": ((1, 1), (1, 2)),  # with the places of maxima
    "reduction": ((1, 1), (1, 0)),
    "embedding": ((0, 2), (0, 3)),
    "copy": ((1, 1), (1, 1)),
    "slice": ((0, 0), (1, 1)),
}

_TILES = (
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
    (128, 32),
    (32, 128),
    (64, 32),
    (32, 64),
    (32, 32),
)  # rows, columns
_TILE_SIZES = tuple(np.array(sizes, dtype=np.float64) for sizes in zip(*_TILES, strict=True))
_FEW_PRODUCTS = 256  # numbers in one array
_SOME_WAVES = 8.0  # beyond so many the last one is taken to be half full
# Of the inner width that one multiprocessor gets where it is split: own choice; convolutions do not split it.
_LEAST_PIECE = 512.0
USUAL_LOADS = 0.25  # of Grid.loads, where measurements do not tell it
_SHARPNESS = 6  # of the change from one bound to the other


@frozen(eq=False)
class Grid:
    """How products are cut; figures of one element a product, or of all."""

    processors: float  # multiprocessors of the device
    startup: Floats | float  # inner width that a tile's first loads and last stores cost
    # how much of the last wave's idle multiprocessors counts, 0 to 1: libraries choose among many tiles
    waves: Floats | float
    # what the loads of a tile of 64 x 64 cost more than those of 128 x 128, as a share of its arithmetic
    loads: Floats | float
    # whether few tiles split their inner width among the idle multiprocessors
    is_split: NDArray[np.bool_] | bool = True

    def padded_flop(self, rows: Floats, inner: Floats, columns: Floats, count: Floats) -> Floats:
        """Return the FLOP that take as long as the products, by the tile that does best: whole tiles, whole waves.

        Parameters
        ----------
        rows, inner, columns, count
            Of the products, of one shape; nothing is computed where one is 0.
        """
        most_pieces = np.where(self.is_split, np.maximum(inner // _LEAST_PIECE, 1.0), 1.0)

        def slots_flop(tile_rows: Floats | int, tile_columns: Floats | int) -> Floats:
            tiles = np.maximum(np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) * count, 1.0)
            waves = tiles / self.processors
            whole = np.where(waves > _SOME_WAVES, waves + 0.5, np.ceil(waves))
            slots = (self.waves * whole + (1 - self.waves) * np.maximum(waves, 1.0)) * self.processors
            # Few tiles: the inner width is split among the idle multiprocessors, as long as each gets some of it.
            pieces = np.clip(np.floor(1 / waves), 1.0, most_pieces)
            cost = 1 + self.loads * (64 / tile_rows + 64 / tile_columns - 1)
            return np.asarray(2 * slots * tile_rows * tile_columns * (inner / pieces + self.startup) * cost)

        if rows.size <= _FEW_PRODUCTS:  # all tiles at once: the calls would take longer than their work
            shape = (len(_TILES), *[1] * rows.ndim)
            best = slots_flop(*(sizes.reshape(shape) for sizes in _TILE_SIZES)).min(axis=0)
        else:
            best = np.full(rows.shape, np.inf)
            for tile in _TILES:
                best = np.minimum(best, slots_flop(*tile))
        return np.where(rows * columns * count > 0, best, 0.0)


def startup_width(
    width: Floats | float, flop_per_s: float, num_multiprocessors: int, *, stated_flop_per_s: float
) -> Floats | float:
    """Return the inner width that a tile's start-up costs on a device.

    Parameters
    ----------
    width
        On a multiprocessor of ``stated_flop_per_s``; 0: of any rate.
    flop_per_s, num_multiprocessors
        Peak and multiprocessors of the device; 1 where their number is not known: then the width is taken as it is.
    """
    if not stated_flop_per_s or num_multiprocessors <= 1:
        return width
    return width * flop_per_s / (num_multiprocessors * stated_flop_per_s)


def longer_of(first: Floats | float, second: Floats | float, sharpness: float = _SHARPNESS) -> Floats:
    """Return about the larger of two times: a little more where they are close, as work is then never all hidden.

    Parameters
    ----------
    first, second
        Seconds, of shapes that broadcast.
    sharpness
        n of the norm ``(x**n + y**n) ** (1/n)``: at least the larger, at most 2 ** (1/n) times it, which for 6 is 1.12.
        Own choice; a sharp maximum is what it tends to.
    """
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    share = np.divide(smaller, larger, out=np.zeros(np.shape(larger)), where=np.asarray(larger) > 0)
    return np.asarray(larger * (1 + share**sharpness) ** (1 / sharpness), dtype=float)
