"""The least seconds of layers, embedding and head on one machine group, whatever is open but a few decisions.

A table of the cost model's own figures, for bounds: of the tensor, context and expert degrees and the micro-batch
(:data:`FEW`) it has what a layer of each kind and the ends take of one micro-batch, forward and backward, with all else
at its best: no recomputation, all overlaps that the question leaves open, sequence parallelism or not, and the order of
ranks and the context method that suit each part. Ranks lie as near as they can: no more data ranks than experts are
spread over, and one stage. In any layout with these degrees the strides of ranks are whole multiples of those, which
makes no group touch fewer units of the network, and no collective quicker.

Rows are worked out when they are asked for first, and kept: a search asks for those alone that coarser bounds leave.

**Of each sample.** Where the micro-batch is open, a sample takes ``y = min x(b) / b`` seconds of a stage at the least,
``x(b)`` being those of a micro-batch of b samples, over all b up to a replica's samples S. A step of ``S / b``
micro-batches takes no less than one of S micro-batches of a sample each that takes y: the work is no more, and what
fills and empties the pipeline is one sample in place of b. So a bound of a given micro-batch is one of all of them,
with y in place of x, in each stage by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.cost import GroupCost
from planner.models.communication import ORDERS, Tier, axes_of
from planner.models.layouts import Ints, Layouts
from planner.models.transformer_time import kind_times
from planner.solvers.grid import Columns, distinct
from planner.transformer import Transformer

FEW = ("tensor", "context", "expert", "expert_tensor", "microbatch")  # on which a layer's seconds depend
DEGREES = FEW[:-1]
IDEAL_TIERS = (Tier(size=1, bandwidth_bytes_per_s=inf),)
_ROWS_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastSeconds:
    """Seconds of one micro-batch that no layout of some degrees is under.

    Attributes
    ----------
    layer_s, layer_forward_s
        Of a layer of each kind, both ways and forward, shape (kinds, n).
    embedding_s, embedding_forward_s, head_s, head_forward_s
        Of the ends, shape (n,).
    """

    layer_s: Floats
    layer_forward_s: Floats
    embedding_s: Floats
    embedding_forward_s: Floats
    head_s: Floats
    head_forward_s: Floats

    @classmethod
    def of(cls, transformer: Transformer, interval: Mapping[str, Floats]) -> "LeastSeconds":
        """Return those of layouts that are decided: see :func:`planner.models.transformer_time.interval_times`."""
        layer_s, forward_s = kind_times(transformer, interval)
        names = ("embedding", "embedding_forward", "head", "head_forward")
        return cls(layer_s=layer_s, layer_forward_s=forward_s, **{f"{name}_s": interval[name] for name in names})

    @classmethod
    def _of_rows(cls, rows: Floats) -> "LeastSeconds":
        """Return the seconds of rows as :meth:`LayerTable.rows` has them."""
        kinds = (len(rows) - len(_ENDS)) // 2
        backward, forward = rows[:kinds], rows[kinds : 2 * kinds]
        embedding, embedding_back, head, head_back = rows[2 * kinds :]
        return cls(
            layer_s=forward + backward,
            layer_forward_s=forward,
            embedding_s=embedding + embedding_back,
            embedding_forward_s=embedding,
            head_s=head + head_back,
            head_forward_s=head,
        )


_ENDS = ("embedding_forward", "embedding_backward", "head_forward", "head_backward")


@dataclass(eq=False)
class LayerTable:
    """A table of one machine group.

    Attributes
    ----------
    group
        Whose cost it is.
    best
        Of the decisions that are open: the value that makes layers quickest.
    tried
        Of those of which none is: all values.
    values
        Of each of :data:`FEW`, in order.
    has_links
        Whether communication takes time.
    ask
        Raises an error where the search is over.
    """

    group: GroupCost
    best: Mapping[str, int]
    tried: Mapping[str, Sequence[int]]
    values: Mapping[str, Sequence[int]]
    has_links: bool
    ask: Callable[[], None]
    _codes: Ints = field(init=False)
    _rows: Floats = field(init=False)

    def __post_init__(self) -> None:
        kinds = len(self.group.transformer.kind_counts)
        self._codes, self._rows = np.zeros(0, dtype=np.int64), np.zeros((2 * kinds + len(_ENDS), 0))
        tiers, constants = tuple(replace(one, by_stride=()) for one in self.group.tiers), self.group.constants
        if not self.has_links:
            tiers, constants = IDEAL_TIERS, replace(constants, hop_s=0.0)
        self._near = replace(self.group)
        vars(self._near).update(tiers=tiers, constants=constants)

    def of(self, nodes: Columns) -> LeastSeconds:
        """Return the least seconds of nodes whose micro-batch is decided."""
        rows, back = self._looked_up(nodes)
        return LeastSeconds._of_rows(rows[:, back])

    def of_each_sample(self, nodes: Columns, samples: Ints) -> LeastSeconds:
        """Return the least seconds of a micro-batch of the smallest size at the pace of the best one.

        Parameters
        ----------
        nodes
            Their degrees.
        samples
            That a replica has: no micro-batch has more. Shape (n,).
        """
        sizes = np.array(self.values["microbatch"] or (1,), dtype=np.int64)
        first, back = distinct(nodes, DEGREES)
        few = {name: np.repeat(nodes[name][first], len(sizes)) for name in DEGREES}
        rows, found = self._looked_up({**few, "microbatch": np.tile(sizes, len(first))})
        each = rows[:, found].reshape(-1, len(first), len(sizes)) / sizes
        each = np.minimum.accumulate(each, axis=2) * sizes[0]
        place = np.maximum(np.searchsorted(sizes, samples, side="right") - 1, 0)
        return LeastSeconds._of_rows(each[:, back, place])

    def _looked_up(self, nodes: Columns) -> tuple[Floats, Ints]:
        """Return all rows that are known, and for each node which: those that are missing are worked out before."""
        code = np.zeros(len(nodes["tensor"]), dtype=np.int64)
        for name in FEW:
            values = np.asarray(self.values[name], dtype=np.int64)
            code = code * len(values) + np.searchsorted(values, nodes[name])
        asked, first, back = np.unique(code, return_index=True, return_inverse=True)
        is_new = ~np.isin(asked, self._codes, assume_unique=True)
        if is_new.any():
            new = {name: nodes[name][first[is_new]] for name in FEW}
            parts = []
            for start in range(0, int(is_new.sum()), _ROWS_AT_ONCE):
                self.ask()
                parts.append(self._worked_out({n: one[start : start + _ROWS_AT_ONCE] for n, one in new.items()}))
            codes = np.concatenate([self._codes, asked[is_new]])
            order = np.argsort(codes)
            self._codes, self._rows = codes[order], np.concatenate([self._rows, *parts], axis=1)[:, order]
        return self._rows, np.searchsorted(self._codes, asked)[back]

    def _worked_out(self, few: Columns) -> Floats:
        """Return the rows of some combinations."""
        transformer, size = self.group.transformer, len(few["tensor"])
        least = np.full((*self._rows.shape[:1], size), inf)
        orders = [0]
        if self.has_links:  # of one stage the pipeline's place in an order does not matter
            orders = [*{tuple(n for n in ORDERS[one] if n != "pipeline"): one for one in self.tried["order"]}.values()]
        parallel = self.tried["sequence_parallel"] if self.has_links else [max(self.tried["sequence_parallel"])]
        for is_parallel, order in product(parallel, orders):
            chosen = {**self.best, "sequence_parallel": is_parallel, "order": order}
            chosen["overlap_tensor"] *= is_parallel
            columns = {name: np.full(size, value) for name, value in chosen.items()} | dict(few)
            times = LeastSeconds.of(transformer, self._near.interval(_nearest(self._near.layouts(columns))))
            rows = (
                times.layer_s - times.layer_forward_s,
                times.layer_forward_s,
                times.embedding_forward_s,
                times.embedding_s - times.embedding_forward_s,
                times.head_forward_s,
                times.head_s - times.head_forward_s,
            )
            np.minimum(least, np.concatenate([np.atleast_2d(one) for one in rows]), out=least)
        return least


def _nearest(layouts: Layouts) -> Layouts:
    """Return layouts with no more data ranks than experts need, so that their ranks are near."""
    *_, (data, _) = axes_of(layouts)["expert"]
    return replace(layouts, data=data)
