"""Parallel layouts of a transformer's training step, many at once: one array a decision, one element a layout.

Every cost of the hybrid family is a function of such arrays, so that a million layouts are one call. Ranks are counted
as Megatron does: ``tensor x context x data x pipeline`` devices; experts are spread over ``expert`` groups of
``expert_tensor`` devices each, which cut their matrices, among the ``tensor x context x data`` ranks that hold the same
layers; they are copied ``tensor x context x data / (expert x expert_tensor)`` times.

**Even cuts.** The ``L`` layers are dealt out to p devices and then to the v virtual stages of each, as evenly as whole
layers go: devices have ``ceil(L / p)`` or one less, first the last one, which has the head, then the first, which has
the embedding, then others from the end (Llama 3, arXiv 2407.21783, section 3.3.2, has one less on both ends). Virtual
stages of a device have one layer more from its first on; on the first device from the second on, so that those which
follow one another are alike. Device ``i`` holds the virtual stages ``i, i + p, i + 2p, ...`` (D. Narayanan et al.,
SC21, arXiv 2104.04473, section 2.2).

Of stages the earliest has most in flight, so that only a few of them can be the fullest: the first, the last, and those
that hold more in some chunk than each stage before. Their number does not grow with the layers. Where the virtual
stages of a device differ, so does what is in flight from moment to moment: those moments are kept that no other exceeds
in layers of every kind.

**Layers of several kinds**, with experts and without, say. A stage is told by how many of each it holds
(:func:`layers_by_kind`). Of an even cut those few stages are looked at one of which is the busiest, whatever a layer of
each kind takes: the first, the last, and of those between them the ones that no later one equals or exceeds in every
kind (:func:`busiest_stages`).

Cuts by speed, and micro-batches of replicas: :mod:`planner.models.balance`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.frozen import frozen
from planner.models.orders import fewest_microbatches, held_chunks
from planner.transformer import KINDS, LayerKind, Transformer

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


_MOST_CODES = 2**40  # so that one more decision still fits 63 bits,
_MOST_WIDTH = 2**20  # of no more values than these


class Recompute(IntEnum):
    """What the backward pass computes again instead of reading it from memory (Korthikanti et al., section 5)."""

    NONE = 0
    SELECTIVE = 1  # the products of queries, keys and values, and the softmax between them
    FULL = 2  # whole layers, of which only the input is kept


class Schedule(IntEnum):
    """In which order a stage does its micro-batches."""

    GPIPE = 0
    ONE_F_ONE_B = 1  # interleaved, where a device has more than one chunk
    ZB_H1 = (
        2  # from here on gradients of weights are put off, and fill the waits: as much memory as 1F1B on its fullest
    )
    ZB_H2 = 3
    ZB_V = 4  # from here on the stages turn at the last device, which has the two in the middle
    V_HALF = 5
    V_MIN = 6
    DUALPIPE = 7  # as DualPipeV on half of the devices with twice the replicas: see :class:`Layouts`
    DUALPIPE_V = 8


SCHEDULE_NAMES = ("gpipe", "1f1b", "zb_h1", "zb_h2", "zb_v", "v_half", "v_min", "dualpipe", "dualpipe_v")


class ContextMethod(IntEnum):
    """How ranks that share a sequence see all its keys and values (:mod:`planner.models.transformer_communication`)."""

    RING = 0  # these pass round a ring, beside attention
    ALL_GATHER = 1  # every rank gathers them
    ULYSSES = 2  # an all-to-all gives each rank whole sequences of some heads
    HIERARCHICAL = 3  # the same among neighbours, and a ring of these groups


ANY_CONTEXT_METHOD = len(ContextMethod)  # of bounds alone: whichever takes least


@frozen(eq=False)
class Layouts:
    """Arrays of one length, or of length 1 where all layouts agree.

    DualPipe on p devices has two copies of the network, which run towards each other: devices i and p - 1 - i hold the
    same two stages. It stands here as what it is, DualPipeV on p / 2 devices with twice the replicas, half of the
    micro-batches each, and two chunks (deepseek-ai/DualPipe, "cut-in-half"); only that its turn lies between devices.
    """

    # tensor, context, pipeline, data: degrees; their product is the number of devices
    tensor: Ints
    context: Ints
    pipeline: Ints
    data: Ints
    # groups of devices over which the experts of a layer are spread. 1 without experts
    expert: Ints
    # devices of each that share every multiplication of an expert; divides ``tensor``. No meaning without experts
    expert_tensor: Ints
    interleave: Ints  # chunks of layers on each device; 1 is plain
    microbatch: Ints  # samples of one micro-batch on one replica
    num_microbatches: Ints  # of one step on one replica: ``global batch / (data x microbatch)``
    zero: Ints  # ZeRO stage, 0 to 3, over ``data x context`` ranks
    # recompute, schedule: see :class:`Recompute` and :class:`Schedule`
    recompute: Ints
    schedule: Ints
    sequence_parallel: Bools  # whether what lies between the tensor-parallel products is split along the sequence
    # overlap_data, overlap_tensor: whether gradients' and weights' communication runs beside computing; whether tensor-
    # parallel one does
    overlap_data: Bools
    overlap_tensor: Bools
    # whether tokens travel to experts and back beside what another micro-batch computes: forward and backward passes of
    # unlike micro-batches run together, so that one more of them waits
    overlap_expert: Bools
    offload_optimizer: Bools  # whether the optimiser's state lies in host memory
    # which permutation of the degrees, from the innermost tier outwards; an index into
    # :data:`planner.models.tiers.ORDERS`
    order: Ints
    # of selective recomputation: which modules of a layer, an index into
    # :data:`planner.models.recomputation.MODULE_SETS`; the first is the attention core alone
    recompute_modules: Ints
    recompute_layers: Ints  # of full recomputation: how many layers of each virtual stage are computed again; 0 all
    context_method: Ints  # see :class:`ContextMethod`; of one context rank no meaning
    # of how many data ranks ZeRO shards states over, with their context ranks; the rest hold copies; 0: all
    shard: Ints
    offload_layers: Ints  # of how many layers of a stage activations wait in host memory: :mod:`planner.models.offload`
    offload_percent: Ints  # of an optimiser on the host, how much of its state lies there; 100 all
    # which modules' inputs wait in host memory, an index into :data:`planner.models.offload.OFFLOAD_SETS`; 0 none
    offload_modules: Ints

    @classmethod
    def one(cls, **decisions: int | bool) -> "Layouts":
        """Return a single layout.

        Parameters
        ----------
        decisions
            By field; whatever is left out is 1, False, plain 1F1B or the first order; ``expert_tensor`` is ``tensor``.

        Raises
        ------
        TypeError
            If one is no field.
        """
        defaults = {"schedule": int(Schedule.ONE_F_ONE_B), "zero": 0, "recompute": 0, "order": 0}
        defaults |= {
            "recompute_modules": 0,
            "recompute_layers": 0,
            "shard": 0,
            "offload_layers": 0,
            "offload_percent": 100,
            "offload_modules": 0,
        }
        defaults["context_method"] = int(ContextMethod.RING)
        defaults["expert_tensor"] = int(decisions.get("tensor", 1))
        arrays: dict[str, Ints | Bools] = {}
        for field in fields(cls):
            is_flag = field.type == Bools
            value = decisions.pop(field.name, False if is_flag else defaults.get(field.name, 1))
            arrays[field.name] = np.array([value], dtype=bool if is_flag else np.int64)
        if decisions:
            raise TypeError(f"no such decision: {', '.join(sorted(decisions))}")
        return cls(**arrays)  # type: ignore[arg-type]  # arrays of both kinds, by the name of the field

    def __len__(self) -> int:
        """Return how many layouts there are."""
        number = len(self.tensor)
        return number if number > 1 else max(map(len, _ARRAYS(self)))

    def arrays(self) -> Mapping[str, Ints | Bools]:
        """Return the arrays by name."""
        return dict(zip(self.__dataclass_fields__, _ARRAYS(self), strict=True))

    def of(self, kept: Ints | Bools | slice) -> "Layouts":
        """Return some of the layouts, their arrays of full length.

        Parameters
        ----------
        kept
            Which: indices, a mask of shape (n,), or a slice.
        """
        number = len(self)
        taken = {
            name: (array if len(array) == number else np.broadcast_to(array, number))[kept]
            for name, array in self.arrays().items()
        }
        return Layouts(**taken)  # type: ignore[arg-type]  # arrays of both kinds, by the name of the field

    def distinct(self, names: Sequence[str], *more: Floats) -> tuple[Ints, Ints]:
        """Return the index of one layout of each combination of some decisions, and for each layout which.

        Parameters
        ----------
        names
            Of the decisions.
        more
            Other numbers of each layout in which those of one combination agree, too.
        """
        arrays = self.arrays()
        code, size = np.zeros(len(self), dtype=np.int64), 1
        others = (np.unique(array, return_inverse=True)[1].reshape(np.shape(array)) for array in more)
        for given in (*(np.asarray(arrays[name], dtype=np.int64) for name in names), *others):
            number = given - given.min()
            if int(number.max()) >= _MOST_WIDTH:
                number = np.unique(number, return_inverse=True)[1]
            width = int(number.max()) + 1
            if size * width >= _MOST_CODES:
                code, size = np.unique(code, return_inverse=True)[1], len(self)
            code, size = code * width + number, size * width
        _, chosen, back = np.unique(code, return_index=True, return_inverse=True)
        return chosen, back

    @property
    def puts_off(self) -> Bools:
        """Whether gradients of weights are put off."""
        return np.asarray(self.schedule >= Schedule.ZB_H1)

    @property
    def is_folded(self) -> Bools:
        """Whether the stages turn at the last device, so that the first one has embedding and head."""
        return np.asarray(self.schedule >= Schedule.ZB_V)

    @property
    def has_ends_together(self) -> Bools:
        """Whether embedding and head stand on the same device."""
        return np.asarray((self.pipeline == 1) | self.is_folded)

    @property
    def num_devices(self) -> Ints:
        """Devices of each layout."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def expert_share(self) -> NDArray[np.float64]:
        """Expert ranks for each tensor rank: of how many ``context x data`` ranks' experts each holds a part."""
        return np.asarray(self.expert * (self.expert_tensor / self.tensor))

    @property
    def sharing_ranks(self) -> Ints:
        """Context and data ranks over which ZeRO shards what a device holds."""
        return self.context * np.where(self.shard > 0, self.shard, self.data)

    @property
    def host_share(self) -> NDArray[np.float64]:
        """Of the optimiser's state, what lies in host memory."""
        return np.asarray(self.offload_optimizer * (self.offload_percent / 100))

    def recomputed_share(self, layers: Ints) -> NDArray[np.float64]:
        """Return the share of a stage's layers that full recomputation computes again, shape (n,).

        Parameters
        ----------
        layers
            Of a stage of each layout.
        """
        number = self.recompute_layers * self.interleave
        return np.where(number > 0, np.minimum(number / np.maximum(layers, 1), 1.0), 1.0)

    @property
    def stream_split(self) -> Ints:
        """Devices over which what lies between the tensor-parallel GEMMs is split along the sequence."""
        return np.where(self.sequence_parallel, self.tensor, 1)


_ARRAYS = attrgetter(*Layouts.__dataclass_fields__)


# -- layers of several kinds -------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def layers_before(kinds: tuple[LayerKind, ...]) -> Ints:
    """Return how many layers of each kind that there is stand before each, and before the end: shape (kinds, L + 1).

    Parameters
    ----------
    kinds
        Of every layer.
    """
    met = [kind for kind in KINDS if kind in kinds]
    rows = [np.cumsum([kind == one for kind in kinds], dtype=np.int64) for one in met]
    return np.array([np.concatenate([[0], row]) for row in rows])


def layers_by_kind(transformer: Transformer, layers: Ints) -> Ints:
    """Return the layers of stages of each kind that the network has, as :attr:`Transformer.kind_counts` lists them.

    Parameters
    ----------
    transformer, layers
        The network, and the layers of all stages in order along the first axis.

    Returns
    -------
    Of the shape of ``layers``, behind an axis of kinds.
    """
    if len(transformer.kind_counts) == 1:
        return layers[None]
    before, ends = layers_before(transformer.layer_kinds), np.cumsum(layers, axis=0)
    return before[:, ends] - before[:, ends - layers]


# -- stages of even cuts -----------------------------------------------------------------------------------------------


def dealt_layers(num_layers: int, pipeline: int, interleave: int = 1) -> Ints:
    """Return the layers of every virtual stage of an even cut, shape (v, p).

    Parameters
    ----------
    num_layers, pipeline, interleave
        L, p and v.

    >>> dealt_layers(30, 4).tolist(), dealt_layers(11, 2, 3).tolist()
    ([[7, 8, 8, 7]], [[2, 2], [2, 2], [2, 1]])
    """
    most = -(-num_layers // pipeline)
    devices = np.full(pipeline, most, dtype=np.int64)
    devices[[pipeline - 1, 0, *range(pipeline - 2, 0, -1)][: most * pipeline - num_layers]] -= 1
    return chunked_layers(devices, interleave)


def chunked_layers(stage_layers: Sequence[int] | Ints, interleave: int) -> Ints:
    """Return the layers of every virtual stage, shape (v, p), from those of p stages.

    Parameters
    ----------
    stage_layers, interleave
        Layers of each device, and v.
    """
    devices = np.asarray(stage_layers, dtype=np.int64)
    each, left = devices // interleave, devices % interleave
    row, start = np.arange(interleave)[:, None], (np.arange(len(devices)) == 0) * 1
    return np.asarray(each + ((row >= start) & (row < left + start)))


def folded_layers(num_layers: int, pipeline: int) -> Ints:
    """Return the layers of every virtual stage of an even cut in a V, in the order of the network, shape (2 p,).

    Devices have ``ceil(L / p)`` or one less, first the first one, which has embedding and head, then others from the
    end. Of an odd number the virtual stage behind the turn has more: its activations stay for less time.

    Parameters
    ----------
    num_layers, pipeline
        L >= 2 p, and p.

    >>> folded_layers(16, 4).tolist(), folded_layers(13, 3).tolist()
    ([2, 2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 3, 2])
    """
    most = -(-num_layers // pipeline)
    devices = np.full(pipeline, most, dtype=np.int64)
    devices[[0, *range(pipeline - 1, 0, -1)][: most * pipeline - num_layers]] -= 1
    return np.concatenate([devices // 2, (devices - devices // 2)[::-1]])


def folded_back(table: Ints) -> Ints:
    """Return what virtual stages of a V have, of shape (..., 2, p) in the order of the network, by device.

    Parameters
    ----------
    table
        Of both legs, one after the other.
    """
    return np.stack([table[..., 0, :], table[..., 1, ::-1]], axis=-2)


@frozen(eq=False)
class EvenCut:
    """How cuts of n layouts deal out layers, even ones and one that is given; arrays of shape (n,)."""

    # whether all virtual stages are alike but for the first and the last, which may have a layer less where there are
    # devices between the ends
    is_alike: Bools
    most: Ints  # layers of the fullest device; of a given cut, of those between the ends where there are any
    # first_less, last_less: layers that the first and the last device have less, 0 or 1 of an even cut
    first_less: Ints
    last_less: Ints
    fullest: Ints  # index of the last device between the ends that has the most
    first_chunk: Ints  # layers of the first virtual stage
    # to_fullest, to_last: those of the first virtual stages of all devices before ``fullest``, and before the last
    to_fullest: Ints
    to_last: Ints

    @classmethod
    def of(cls, num_layers: int, layouts: Layouts) -> "EvenCut":
        """Return the even cuts of layouts, as :func:`dealt_layers` has them one by one.

        Parameters
        ----------
        num_layers, layouts
            L, and n layouts.
        """
        p, v, chunks = layouts.pipeline, layouts.interleave, layouts.pipeline * layouts.interleave
        most = -(-num_layers // p)
        short = most * p - num_layers
        first_less, last_less = (short >= 2) * 1, (short >= 1) * 1
        first_chunk = (most - first_less) // v
        fullest = np.minimum(p - 2, p - np.maximum(short, 2))
        each, less = -(-most // v), -(-(most - 1) // v)
        return cls(
            is_alike=(num_layers % chunks == 0)
            | (((num_layers + 1) % chunks == 0) | ((num_layers + 2) % chunks == 0)) & (p > 2),
            most=most,
            first_less=first_less,
            last_less=last_less,
            fullest=fullest,
            first_chunk=first_chunk,
            to_fullest=np.where(fullest > 0, first_chunk + (fullest - 1) * each, 0),
            to_last=np.where(p > 1, first_chunk + np.maximum(fullest, 0) * each + (p - 2 - fullest) * less, 0),
        )


def cut_of(num_layers: int, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None) -> EvenCut:
    """Return the cuts of layouts: even ones, or those given.

    Parameters
    ----------
    num_layers, layouts
        L, and n layouts.
    chunk_layers
        Of every virtual stage, in the order of the network, of all layouts or of each, shape (K,) or (K, n); all then
        have as many stages and chunks.
    """
    if chunk_layers is None:
        return EvenCut.of(num_layers, layouts)
    p, v = int(layouts.pipeline[0]), int(layouts.interleave[0])
    table = np.asarray(chunk_layers, dtype=np.int64).reshape(v, p, -1)
    devices, has_middle = table.sum(axis=0), p > 2
    inner = devices[1:-1] if has_middle else devices
    most = inner.max(axis=0)
    fullest = p - 2 - inner[::-1].argmax(axis=0) if has_middle else np.full(len(most), p - 2)
    before = np.concatenate([np.zeros((1, len(most)), dtype=np.int64), np.cumsum(table[0], axis=0)])
    found = {
        "most": most,
        "first_less": most - devices[0],
        "last_less": most - devices[-1],
        "fullest": fullest,
        "first_chunk": table[0, 0],
        "to_fullest": np.take_along_axis(before, np.maximum(fullest, 0)[None, :], axis=0)[0],
        "to_last": before[-2],
    }
    return EvenCut(is_alike=np.zeros(1, dtype=bool), **found)


@frozen(eq=False)
class Stage:
    """One pipeline stage of each of n layouts, at one moment; or several of each, shape (..., n)."""

    index: Ints  # of the stage, from 0; shape (n,)
    # its layers of each kind, as :attr:`planner.transformer.Transformer.kind_counts` lists them; shape (kinds, n)
    layers: Ints
    in_flight: Ints  # the same, counted once for every micro-batch whose activations they keep

    def of_rows(self, rows: slice) -> "Stage":
        """Return some of several stages of each layout."""
        return Stage(index=self.index[rows], layers=self.layers[:, rows], in_flight=self.in_flight[:, rows])


def chunk_in_flight(layouts: Layouts, stage: Ints, chunk: int | Ints) -> Ints:
    """Return how many micro-batches of one chunk of a stage are in flight when it begins to run backward.

    Parameters
    ----------
    layouts
        n of them.
    stage, chunk
        Indices from 0, of shape (n,). Forwards take the chunks in turn, ``p`` micro-batches at a time.
    """
    number, turn = _in_flight_chunks(layouts, stage), layouts.pipeline * layouts.interleave
    found = number // turn * layouts.pipeline + np.clip(number % turn - chunk * layouts.pipeline, 0, layouts.pipeline)
    if not layouts.puts_off.any():
        return found
    # What ends of the network hold is gone with the backward, even if gradients of weights are put off.
    behind = layouts.pipeline - stage
    lead = np.where(layouts.schedule == Schedule.ZB_H2, 2 * behind - 1, behind)
    ends = np.where(layouts.puts_off, np.minimum(layouts.num_microbatches, lead), found)
    if not layouts.is_folded.any():
        return ends
    most = _of_cuts(layouts, lambda p, v, more, schedule, m: [*_most_of_chunks(p, schedule, m)])
    at = np.stack(np.broadcast_arrays(stage, chunk, np.arange(len(layouts))))
    held = most[np.minimum(at[0], len(most) - 1), np.minimum(at[1], 1), at[2]]
    return np.where(layouts.is_folded, held, ends)


def _held(p: int, schedule: int, m: int) -> "tuple[tuple[tuple[int, ...], ...], ...]":
    """Return the fullest moments of the devices of a V: micro-batches of both chunks."""
    name = SCHEDULE_NAMES[Schedule.DUALPIPE_V if schedule == Schedule.DUALPIPE else schedule]
    return held_chunks(name, p, max(m, fewest_microbatches(name, p)), 2)


def _most_of_chunks(p: int, schedule: int, m: int) -> tuple[tuple[int, int], ...]:
    """Return the most that the devices of a V hold of either chunk; nothing where it is none."""
    if not schedule:
        return ((0, 0),)
    return tuple((max(one[0] for one in row), max(one[1] for one in row)) for row in _held(p, schedule, m))


def _in_flight_chunks(layouts: Layouts, stage: Ints) -> Ints:
    """Return how many chunks' activations a stage keeps at the fullest moment, one micro-batch each; of no V.

    GPipe: all ``m v``. 1F1B: ``min(m, p - i)``. Interleaved: ``min(m v, 2 (p - i - 1) + (v - 1) p + 1)``, which on the
    first stage is ``1 + (p - 1) / (p v)`` times ``p v`` (V. Korthikanti et al., arXiv 2205.05198, section 4.2.3).
    Gradients of weights that are put off need what the forward has kept: ZB-H1 ``min(m, p)``, ZB-H2 ``min(m, 2 p - 1)``
    on all stages (P. Qi et al., arXiv 2401.10241, table 2). One more where experts' exchange runs beside another
    micro-batch (Megatron-Core, ``pipeline_parallel/schedules.py``: one more forward pass before the first backward).
    """
    behind, chunks = layouts.pipeline - stage, layouts.interleave
    warm = np.where(chunks > 1, 2 * (behind - 1) + (chunks - 1) * layouts.pipeline + 1, behind)
    if layouts.puts_off.any():
        most = np.where(layouts.schedule == Schedule.ZB_H2, 2 * layouts.pipeline - 1, layouts.pipeline)
        warm = np.where(layouts.puts_off, most, warm)
    every = layouts.num_microbatches * chunks
    return np.where(layouts.schedule == Schedule.GPIPE, every, np.minimum(every, warm + layouts.overlap_expert))


def fullest_stages(transformer: Transformer, layouts: Layouts, pipeline_layers: Sequence[int] | None = None) -> Stage:
    """Return stages of every layout one of which is its fullest, as arrays of shape (r, n).

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    pipeline_layers
        Layers of every stage, or of every virtual stage in the order of the network, where they are not to be dealt out
        evenly; all layouts then have that many.
    """
    kinds, given = transformer.layer_kinds, None if pipeline_layers is None else tuple(pipeline_layers)
    tables = _of_cuts(layouts, lambda *cut: _fullest(kinds, *cut, given))
    return _stage(layouts, tables.swapaxes(0, 1))


def fullest_counts(transformer: Transformer, layouts: Layouts, pipeline_layers: Sequence[int] | None = None) -> Ints:
    """Return for each layout how many stages :func:`fullest_stages` has of it, but for its last one again.

    Parameters
    ----------
    transformer, layouts, pipeline_layers
        As of :func:`fullest_stages`.
    """
    kinds, given = transformer.layer_kinds, None if pipeline_layers is None else tuple(pipeline_layers)
    counts = _of_cuts(layouts, lambda *cut: ((len(_fullest(kinds, *cut, given)),),))
    return np.asarray(counts[0, 0])


_Cut = tuple[int, int, int, int, int]  # p, v, chunks that wait beyond the schedule's; of a V its schedule and m, else 0


def _of_cuts(
    layouts: Layouts, rows_of: Callable[[int, int, int, int, int], "Ints | Sequence[tuple[int, ...]]"]
) -> Ints:
    """Return rows of numbers of each layout's cut, asked once for each p, v and chunks that wait beyond the schedule's.

    Of a V also for each schedule and number of micro-batches, as far as that changes anything. Of shape (rows, numbers,
    n); where a cut has fewer rows than another its last one is repeated.
    """
    size, widest = len(layouts), int(layouts.interleave.max(initial=1)) + 1
    code = np.broadcast_to((layouts.pipeline * widest + layouts.interleave) * 2 + layouts.overlap_expert, size)
    if layouts.is_folded.any():
        number = np.minimum(layouts.num_microbatches, 2 * layouts.pipeline + 2)  # more of them hold no more
        number, width = number * layouts.is_folded, int(number.max()) + 1
        code = (code * len(Schedule) + layouts.schedule * layouts.is_folded) * width + number
        codes, where = np.unique(code, return_inverse=True)
        parts = [divmod(one // width, len(Schedule)) for one in codes.tolist()]
        met: list[_Cut] = [
            (*divmod(one // 2, widest), one % 2, schedule, code % width)
            for (one, schedule), code in zip(parts, codes.tolist(), strict=True)
        ]
    else:
        is_met = np.zeros(int(code.max(initial=0)) + 1, dtype=bool)
        is_met[code] = True
        where = (np.cumsum(is_met) - 1)[code]
        met = [(*divmod(one // 2, widest), one % 2, 0, 0) for one in np.flatnonzero(is_met).tolist()]
    tables = [np.asarray(rows_of(*one), dtype=np.int64) for one in met]
    rank = np.arange(max(map(len, tables)))
    return np.stack([one[np.minimum(rank, len(one) - 1)] for one in tables], axis=2)[:, :, where]


@frozen(eq=False)
class BusyStages:
    """Stages of each of n layouts one of which is its busiest, in order, from its first stage to its last."""

    index: Ints  # of the stage, shape (r, n); a stage may stand there more than once
    # layers, before: its layers, and those of the first virtual stages of all devices before it, by kind: shape (kinds,
    # r, n)
    layers: Ints
    before: Ints
    is_alike: Bools  # whether all virtual stages of a layout hold as many layers of each kind, shape (n,)


def busiest_stages(
    transformer: Transformer, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None
) -> BusyStages:
    """Return the stages of cuts one of which is the busiest: see the chapter.

    Parameters
    ----------
    transformer, layouts
        The network, and n layouts of it.
    chunk_layers
        As for :func:`cut_of`; all stages of a given cut are returned.
    """
    if chunk_layers is not None:
        p, v = int(layouts.pipeline[0]), int(layouts.interleave[0])
        sizes = np.asarray(chunk_layers, dtype=np.int64).reshape(v * p, -1)
        table = layers_by_kind(transformer, sizes).reshape(-1, v, p, sizes.shape[1])
        shape = (len(table), p, len(layouts))
        return BusyStages(
            index=np.broadcast_to(np.arange(p)[:, None], shape[1:]),
            layers=np.broadcast_to(table.sum(axis=1), shape),
            before=np.broadcast_to(np.cumsum(table[:, 0], axis=1) - table[:, 0], shape),
            is_alike=np.zeros(len(layouts), dtype=bool),
        )
    kinds, number = transformer.layer_kinds, len(transformer.kind_counts)
    rows = _of_cuts(layouts, lambda p, v, _, schedule, __: _busiest(kinds, p, v, schedule))
    held, before = (rows[:, start : start + number].swapaxes(0, 1) for start in (1, 1 + number))
    return BusyStages(index=rows[:, 0], layers=held, before=before, is_alike=rows[0, -1] == 1)


@lru_cache(maxsize=4_096)
def _busiest(kinds: tuple[LayerKind, ...], pipeline: int, interleave: int, schedule: int = 0) -> Ints:
    """Return the stages of an even cut one of which is the busiest.

    Of each: its index; layers by kind; those before it; and whether all virtual stages are alike.
    """
    chunks = _chunks(kinds, pipeline, interleave, None, schedule)
    held, before = chunks.sum(axis=1), np.cumsum(chunks[:, 0], axis=1) - chunks[:, 0]
    between: list[int] = []
    for stage in range(pipeline - 2, 0, -1):
        if not (held[:, between] >= held[:, stage : stage + 1]).all(axis=0).any():
            between.append(stage)
    is_alike = int((chunks == chunks[:, :1, :1]).all())
    kept = [0, *between[::-1], pipeline - 1]
    return np.array([(stage, *held[:, stage], *before[:, stage], is_alike) for stage in kept])


def fullest_layers(
    transformer: Transformer, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None
) -> tuple[Ints, Bools]:
    """Return the layers of stages one of which has the most parameters, and whether each has embedding or head.

    Parameters
    ----------
    transformer, layouts, chunk_layers
        As for :func:`busiest_stages`.

    Returns
    -------
    By kind, shape (kinds, r, n); and shape (r, n).
    """
    if len(transformer.kind_counts) > 1:
        busy = busiest_stages(transformer, layouts, chunk_layers)
        is_last = (busy.index == layouts.pipeline - 1) & ~layouts.is_folded
        return busy.layers, np.asarray((busy.index == 0) | is_last)
    cut = cut_of(transformer.num_layers, layouts, chunk_layers)
    # Of a V the first stage has both ends, and a layer less where any has.
    less = np.where(layouts.is_folded, cut.last_less, np.minimum(cut.first_less, cut.last_less))
    layers = np.broadcast_arrays(cut.most, cut.most - less)
    return np.array([layers]), np.array(np.broadcast_arrays(layouts.pipeline == 1, True))


@lru_cache(maxsize=4_096)
def _fullest(
    kinds: tuple[LayerKind, ...],
    pipeline: int,
    interleave: int,
    more: int,
    schedule: int,
    num_microbatches: int,
    pipeline_layers: tuple[int, ...] | None,
) -> Ints:
    """Return the moments of stages one of which is the fullest of p stages of v chunks: see the chapter.

    ``more``: chunks that wait beyond what the schedule has; ``schedule`` and micro-batches: of a V, else 0.
    """
    chunks = _chunks(kinds, pipeline, interleave, pipeline_layers, schedule)
    if schedule:
        rows = [_folded_moments(chunks, stage, schedule, num_microbatches) for stage in range(pipeline)]
        others = sorted({row[1:] for row_of in rows[1:] for row in row_of}, reverse=True)
        fullest: list[tuple[int, ...]] = []  # the ends stand on the first device
        for one in others:
            if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in fullest):
                fullest.append(one)
        return np.array([*rows[0], *((1, *one) for one in fullest)])
    kept: list[int] = []
    for stage in range(pipeline):
        is_less = (chunks[:, :, kept] >= chunks[:, :, stage : stage + 1]).all(axis=(0, 1)).any()
        if stage == pipeline - 1 or not is_less:
            kept.append(stage)
    return np.array([row for stage in kept for row in _moments(chunks, stage, more)])


def every_stage(
    transformer: Transformer, layouts: Layouts, pipeline_layers: Sequence[int] | None = None
) -> tuple[Layouts, Stage]:
    """Return a single layout once for each moment of each of its stages, and these stages, in order.

    Parameters
    ----------
    transformer, layouts, pipeline_layers
        As for :func:`fullest_stages`, and one layout.

    Raises
    ------
    ValueError
        If there is not exactly one layout.
    """
    if len(layouts) != 1:
        raise ValueError(f"the stages of one layout are asked for, and {len(layouts)} are given.")
    pipeline = int(layouts.pipeline[0])
    given = None if pipeline_layers is None else tuple(pipeline_layers)
    schedule = int(layouts.schedule[0]) * int(layouts.is_folded[0])
    chunks = _chunks(transformer.layer_kinds, pipeline, int(layouts.interleave[0]), given, schedule)
    more, number = int(layouts.overlap_expert[0]), int(layouts.num_microbatches[0])
    moments = [
        _folded_moments(chunks, stage, schedule, number) if schedule else _moments(chunks, stage, more)
        for stage in range(pipeline)
    ]
    rows = np.array([row for some in moments for row in some], dtype=np.int64).T
    repeated = layouts.of(np.zeros(rows.shape[1], dtype=np.int64))
    return repeated, _stage(repeated, rows)


def _chunks(
    kinds: tuple[LayerKind, ...],
    pipeline: int,
    interleave: int,
    pipeline_layers: tuple[int, ...] | None,
    schedule: int = 0,
) -> Ints:
    """Return the layers of p stages of v chunks by kind, shape (kinds, v, p); ``schedule``: of a V."""
    if pipeline_layers is None and schedule:
        sizes = folded_layers(len(kinds), pipeline)
    elif pipeline_layers is None:
        sizes = dealt_layers(len(kinds), pipeline, interleave).ravel()
    elif sum(pipeline_layers) != len(kinds) or min(pipeline_layers) < 0:
        raise ValueError(
            f"pipeline_layers {list(pipeline_layers)} add up to {sum(pipeline_layers)} layers; "
            f"the network has {len(kinds)}."
        )
    elif len(pipeline_layers) != pipeline * interleave:
        raise ValueError(
            f"pipeline_layers names {len(pipeline_layers)} chunks; a layout has {pipeline} stages of {interleave}."
        )
    else:
        sizes = np.array(pipeline_layers, dtype=np.int64)
    counts = np.diff(layers_before(kinds)[:, np.concatenate([[0], np.cumsum(sizes)])])
    found = counts.reshape(-1, interleave, pipeline)
    return folded_back(found) if schedule else found


# Of a stage at one moment: its index; its layers by kind; and those in flight, or else, where it holds as many in each
# chunk, and they follow from the number of chunks in flight, -1 less those of a chunk.
_Row = tuple[int, ...]


def _moments(table: Ints, stage: int, more: int) -> list[_Row]:
    """Return the moments of a stage that no other exceeds in layers of every kind in flight."""
    chunks = table[:, :, stage]
    layers = tuple(chunks.sum(axis=1).tolist())
    if bool((chunks == chunks[:, :1]).all()):
        return [(stage, *layers, *(-1 - chunks[:, 0]).tolist())]
    interleave, pipeline = table.shape[1:]
    turn, warm = interleave * pipeline, 2 * (pipeline - stage - 1) + (interleave - 1) * pipeline + 1 + more
    chunk = np.arange(warm + turn) % turn // pipeline
    forward = np.cumsum(chunks[:, chunk], axis=1)[:, warm - 1 :][:, :turn]
    backward = np.cumsum(chunks[:, interleave - 1 - chunk[:turn]], axis=1)
    counts = forward - backward + chunks[:, interleave - 1 - chunk[:turn]]  # before the backward that follows
    kept: list[tuple[int, ...]] = []
    for one in sorted({tuple(row) for row in counts.T.tolist()}, reverse=True):  # what exceeds one comes before it
        if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in kept):
            kept.append(one)
    return [(stage, *layers, *one) for one in kept]


def _folded_moments(table: Ints, stage: int, schedule: int, num_microbatches: int) -> list[_Row]:
    """Return the moments of a device of a V that no other exceeds in layers of every kind in flight."""
    chunks = table[:, :, stage]
    held = np.array(_held(table.shape[2], schedule, num_microbatches)[stage])
    kept: list[tuple[int, ...]] = []
    for one in sorted({tuple(row) for row in (held @ chunks.T).tolist()}, reverse=True):
        if not any(all(a >= b for a, b in zip(other, one, strict=True)) for other in kept):
            kept.append(one)
    return [(stage, *chunks.sum(axis=1).tolist(), *one) for one in kept]


def _stage(layouts: Layouts, rows: Ints) -> Stage:
    """Return a stage of every layout, or several, of rows of shape (1 + 2 kinds, ..., n)."""
    index, (layers, moment) = rows[0], np.split(rows[1:], 2)
    number = _in_flight_chunks(layouts, index)
    is_gpipe = layouts.schedule == Schedule.GPIPE
    most = layouts.num_microbatches * layers
    in_turn = np.where(is_gpipe, most, np.minimum(moment, most))
    return Stage(index=index, layers=layers, in_flight=np.where(moment < 0, number * (-1 - moment), in_turn))
