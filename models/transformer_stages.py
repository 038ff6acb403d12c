"""The layers on every pipeline stage, and how many micro-batches' activations it keeps at a time.

The ``L`` layers are cut into ``p v`` equal chunks; where only ``L + 2`` divides by that, the first has a layer less for
the embedding, and the last one less for the head (Llama 3, arXiv 2407.21783, section 3.3.2); else as evenly as whole
layers go, the first ones getting those left over. Device ``i`` holds the chunks ``i, i + p, i + 2p, ...``
(D. Narayanan et al., SC21, arXiv 2104.04473, section 2.2).
Of stages that hold the same layers the earliest has most in flight, so that only a few of them can be the fullest:
the first, the last, and the first of each make. Their number does not grow with the layers. Where the chunks of an
interleaved stage differ, so does what is in flight from moment to moment: those moments are kept that no other exceeds
in layers of both kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.models.layouts import Ints, Layouts, Schedule
from planner.transformer import Transformer

__all__ = ["Stage", "chunk_in_flight", "every_stage", "fullest_stages", "in_flight_chunks"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """One pipeline stage of each of n layouts, at one moment; arrays of shape (n,).

    Attributes
    ----------
    index
        Of the stage, from 0.
    dense, moe
        Its layers without and with experts.
    dense_in_flight, moe_in_flight
        The same, counted once for every micro-batch whose activations they keep.
    """

    index: Ints
    dense: Ints
    moe: Ints
    dense_in_flight: Ints
    moe_in_flight: Ints


def in_flight_chunks(layouts: Layouts, stage: Ints) -> Ints:
    """Return how many chunks' activations a stage keeps at the fullest moment, one micro-batch each.

    GPipe: all ``m v``. 1F1B and ZB-H1: ``min(m, p - i)``. Interleaved: ``min(m v, 2 (p - i - 1) + (v - 1) p + 1)``,
    which on the first stage is ``1 + (p - 1) / (p v)`` times ``p v`` (V. Korthikanti et al., arXiv 2205.05198, section
    4.2.3; ZB-H1: P. Qi et al., arXiv 2401.10241, section 2.2).
    """
    behind, chunks = layouts.pipeline - stage, layouts.interleave
    warm = np.where(chunks > 1, 2 * (behind - 1) + (chunks - 1) * layouts.pipeline + 1, behind)
    every = layouts.num_microbatches * chunks
    return np.where(layouts.schedule == Schedule.GPIPE, every, np.minimum(every, warm))


def chunk_in_flight(layouts: Layouts, stage: Ints, chunk: "int | Ints") -> Ints:
    """Return how many micro-batches of one chunk of a stage are in flight when it begins to run backward.

    Forwards take the chunks in turn, ``p`` micro-batches at a time.
    """
    number, turn = in_flight_chunks(layouts, stage), layouts.pipeline * layouts.interleave
    return number // turn * layouts.pipeline + np.clip(number % turn - chunk * layouts.pipeline, 0, layouts.pipeline)


def fullest_stages(
    transformer: Transformer, layouts: Layouts, pipeline_layers: Sequence[int] | None = None
) -> tuple[Stage, ...]:
    """Return stages of every layout one of which is its fullest.

    Parameters
    ----------
    pipeline_layers
        Layers of every stage, where they are not to be spread evenly; all layouts then have that many stages.
    """
    size, widest = len(layouts), int(layouts.interleave.max(initial=1)) + 1
    code = np.broadcast_to(layouts.pipeline * widest + layouts.interleave, size)
    is_met = np.zeros(int(code.max(initial=0)) + 1, dtype=bool)
    is_met[code] = True
    where = (np.cumsum(is_met) - 1)[code]
    cutter = _Cutter(transformer, pipeline_layers)
    rows = [_candidates(cutter.chunks(*divmod(int(pair), widest))) for pair in np.flatnonzero(is_met)]
    found = []
    for rank in range(max(map(len, rows))):
        table = np.array([row[min(rank, len(row) - 1)] for row in rows], dtype=np.int64).T
        found.append(_stage(layouts, table[:, where]))
    return tuple(found)


def every_stage(
    transformer: Transformer, layouts: Layouts, pipeline_layers: Sequence[int] | None = None
) -> tuple[Layouts, Stage]:
    """Return a single layout once for each moment of each of its stages, and these stages, in order."""
    if len(layouts) != 1:
        raise ValueError(f"the stages of one layout are asked for, and {len(layouts)} are given.")
    pipeline = int(layouts.pipeline[0])
    table = _Cutter(transformer, pipeline_layers).chunks(pipeline, int(layouts.interleave[0]))
    rows = np.array([row for stage in range(pipeline) for row in _moments(table, stage)], dtype=np.int64).T
    repeated = layouts.of(np.zeros(rows.shape[1], dtype=np.int64))
    return repeated, _stage(repeated, rows)


class _Cutter:
    """Cuts the layers of a transformer into chunks."""

    def __init__(self, transformer: Transformer, pipeline_layers: Sequence[int] | None) -> None:
        is_moe = np.array([kind == "moe" for kind in transformer.layer_kinds], dtype=np.int64)
        self._moe_before = np.concatenate([[0], np.cumsum(is_moe)])
        self._given = None if pipeline_layers is None else tuple(pipeline_layers)
        if self._given is not None and (sum(self._given) != transformer.num_layers or min(self._given) < 0):
            raise ValueError(
                f"pipeline_layers {list(self._given)} add up to {sum(self._given)} layers; "
                f"the network has {transformer.num_layers}."
            )

    def chunks(self, pipeline: int, interleave: int) -> Ints:
        """Return layers without and with experts (first axis) of chunk (second) and stage (third)."""
        if self._given is None:
            number = pipeline * interleave
            layers = len(self._moe_before) - 1
            has_ends = layers % number > 0 and (layers + 2) % number == 0
            each, left = divmod(layers + 2 * has_ends, number)
            sizes = np.full(number, each, dtype=np.int64)
            sizes[:left] += 1
            sizes[[0, -1]] -= has_ends
        elif (len(self._given), 1) == (pipeline, interleave):
            sizes = np.array(self._given, dtype=np.int64)
        else:
            raise ValueError(
                f"pipeline_layers names {len(self._given)} stages of one chunk each; "
                f"a layout has {pipeline} stages of {interleave}."
            )
        moe = np.diff(self._moe_before[np.concatenate([[0], np.cumsum(sizes)])])
        return np.stack([sizes - moe, moe]).reshape(2, interleave, pipeline)


# Of a stage at one moment: its index; its layers of both kinds; and those in flight, or else -1, -1, where it holds as
# many in each chunk, and they follow from the number of chunks in flight.
_Row = tuple[int, int, int, int, int]


def _candidates(table: Ints) -> list[_Row]:
    """Return the moments of the first stage, of the first of every make, and of the last."""
    first: dict[bytes, int] = {}
    for stage in range(table.shape[-1]):
        first.setdefault(table[:, :, stage].tobytes(), stage)
    return [row for stage in sorted({*first.values(), table.shape[-1] - 1}) for row in _moments(table, stage)]


def _moments(table: Ints, stage: int) -> list[_Row]:
    """Return the moments of a stage that no other exceeds in layers of both kinds in flight."""
    chunks = table[:, :, stage]
    dense, moe = (int(number) for number in chunks.sum(axis=1))
    if bool((chunks == chunks[:, :1]).all()):
        return [(stage, dense, moe, -1, -1)]
    interleave, pipeline = table.shape[1:]
    turn, warm = interleave * pipeline, 2 * (pipeline - stage - 1) + (interleave - 1) * pipeline + 1
    chunk = np.arange(warm + turn) % turn // pipeline
    forward = np.cumsum(chunks[:, chunk], axis=1)[:, warm - 1 :][:, :turn]
    backward = np.cumsum(chunks[:, interleave - 1 - chunk[:turn]], axis=1)
    counts = forward - backward + chunks[:, interleave - 1 - chunk[:turn]]  # before the backward that follows
    pairs: list[tuple[int, int]] = []
    for one in sorted({(int(a), int(b)) for a, b in counts.T}, reverse=True):
        if not pairs or one[1] > pairs[-1][1]:
            pairs.append(one)
    return [(stage, dense, moe, *pair) for pair in pairs]


def _stage(layouts: Layouts, rows: Ints) -> Stage:
    """Return a stage of every layout."""
    index, dense, moe, *moment = rows
    number = in_flight_chunks(layouts, index)
    is_gpipe = layouts.schedule == Schedule.GPIPE

    def in_flight(layers: Ints, at: Ints) -> Ints:
        most = layouts.num_microbatches * layers
        return np.where(at < 0, number * layers // layouts.interleave, np.where(is_gpipe, most, np.minimum(at, most)))

    return Stage(
        index=index,
        dense=dense,
        moe=moe,
        dense_in_flight=in_flight(dense, moment[0]),
        moe_in_flight=in_flight(moe, moment[1]),
    )
