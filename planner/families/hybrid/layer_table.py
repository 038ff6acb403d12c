"""The least seconds of layers, embedding and head on one machine group, whatever is open but a few decisions.

A table of the cost model's own figures, for bounds: of the tensor, context and expert degrees and the micro-batch
(:data:`FEW`) it has what a layer of each kind and the ends take of one micro-batch, forward and backward, with all else
at its best: no recomputation, all overlaps that the question leaves open, sequence parallelism or not, and the order of
ranks and the context method that suit each part. Ranks lie as near as they can: no more data ranks than experts are
spread over, and one stage. In any layout with these degrees the strides of ranks are whole multiples of those, which
makes no group touch fewer units of the network, and no collective quicker but for hops (:func:`_fewest_hops`).

Rows are worked out when they are asked for first, and kept: a search asks for those alone that coarser bounds leave.

**Of each sample.** Where the micro-batch is open, a sample takes ``y = min x(b) / b`` seconds of a stage at the least,
``x(b)`` being those of a micro-batch of b samples, over all b up to a replica's samples S. A step of ``S / b``
micro-batches takes no less than one of S micro-batches of a sample each that takes y: the work is no more, and what
fills and empties the pipeline is one sample in place of b. So a bound of a given micro-batch is one of all of them,
with y in place of x, in each stage by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.configuration import layouts_of
from planner.families.hybrid.cost import GroupCost
from planner.frozen import frozen
from planner.models.layouts import Ints, Layouts
from planner.models.tiers import ORDERS, Tier, axes_of
from planner.models.transformer_interval import LayerFigures, interval_times, kind_times
from planner.solvers.divisors import divisors
from planner.solvers.grid import Axis, Columns, distinct
from planner.transformer import Transformer

FEW = ("tensor", "context", "expert", "expert_tensor", "microbatch")  # on which a layer's seconds depend
DEGREES = FEW[:-1]
IDEAL_TIERS = (Tier(size=1, bandwidth_bytes_per_s=inf),)
_ROWS_AT_ONCE = 20_000
_MOST_TABLES = 128  # that are kept, of a few megabytes each
Opened = Callable[[dict[str, Ints]], tuple[Columns, Ints]]
_SIZES = range(1 << 24)  # that a micro-batch may have, in tables that several batches share


class KnownNodes:
    """Columns of numbers by the decisions on which they depend: worked out when they are asked for first, and kept.

    Of few decisions with few values, whose columns are all wanted at once; of any whole numbers, one by one, it is
    :class:`planner.models.known.Known`, which takes three times as long for these many nodes.

    Parameters
    ----------
    values
        Of each of these decisions, in order; a range from 0 for all that it may ever be.
    num_rows
        Numbers of each combination.
    """

    def __init__(self, values: Mapping[str, Sequence[int]], num_rows: int = 1) -> None:
        self._values = {name: one if isinstance(one, range) else np.asarray(one) for name, one in values.items()}
        self._codes, self._rows = np.zeros(0, dtype=np.int64), np.zeros((num_rows, 0))

    def of(self, nodes: Columns, worked_out: Callable[[dict[str, Ints]], Floats]) -> tuple[Floats, Ints]:
        """Return all that is known, shape (rows, k), and for each node which of it.

        Parameters
        ----------
        nodes
            With a column for each of the decisions.
        worked_out
            Gives the numbers of some combinations, shape (rows, n); asked for those that are missing.
        """
        code = np.zeros(len(nodes["tensor"]), dtype=np.int64)
        for name, values in self._values.items():
            place = nodes[name] if isinstance(values, range) else np.searchsorted(values, nodes[name])
            code = code * len(values) + place
        asked, first, back = np.unique(code, return_index=True, return_inverse=True)
        is_new = ~np.isin(asked, self._codes, assume_unique=True)
        if is_new.any():
            new = {name: nodes[name][first[is_new]] for name in self._values}
            codes = np.concatenate([self._codes, asked[is_new]])
            order = np.argsort(codes)
            self._rows = np.concatenate([self._rows, worked_out(new)], axis=1)[:, order]
            self._codes = codes[order]
        return self._rows, np.searchsorted(self._codes, asked)[back]


@frozen(eq=False)
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
    def of_interval(cls, transformer: Transformer, interval: Mapping[str, Floats]) -> "LeastSeconds":
        """Return those of layouts that are decided: see :func:`planner.models.transformer_interval.interval_times`."""
        layer_s, forward_s = kind_times(transformer, interval)
        names = ("embedding", "embedding_forward", "head", "head_forward")
        return cls(layer_s=layer_s, layer_forward_s=forward_s, **{f"{name}_s": interval[name] for name in names})

    def mixed(self, other: "LeastSeconds", share: Floats) -> "LeastSeconds":
        """Return those of layers of which a share takes what another one says, and the rest what this one does."""
        layer_s, forward_s = (
            (1 - share) * one + share * two
            for one, two in ((self.layer_s, other.layer_s), (self.layer_forward_s, other.layer_forward_s))
        )
        return replace(self, layer_s=layer_s, layer_forward_s=forward_s)

    def of(self, chosen: Ints) -> "LeastSeconds":
        """Return those of some of the layouts."""
        return LeastSeconds(**{one.name: getattr(self, one.name)[..., chosen] for one in fields(self)})

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
    figures
        Of the network, the devices, their links and the program.
    best
        Of the decisions that are open: the value that makes layers quickest.
    tried
        Of those of which none is: all values; and as ``split`` twice the tensor degree, and 1 more with sequence
        parallelism, of all pairs that may go together.
    values
        Of each of :data:`FEW`, as :class:`KnownNodes` takes them.
    has_links
        Whether communication takes time.
    """

    figures: LayerFigures
    best: Mapping[str, int]
    tried: Mapping[str, Sequence[int]]
    values: Mapping[str, Sequence[int]]
    has_links: bool
    _known: KnownNodes = field(init=False)

    def __post_init__(self) -> None:
        self._known = KnownNodes(self.values, 2 * len(self.figures.transformer.kind_counts) + len(_ENDS))
        constants = self.figures.constants
        tiers = _fewest_hops(self.figures.tiers, constants.hop_s) if self.has_links else IDEAL_TIERS
        self._near = replace(self.figures, tiers=tiers, constants=replace(constants, hop_s=0.0))

    @classmethod
    def kept(
        cls,
        group: GroupCost,
        axes: Mapping[str, Axis],
        *,
        has_links: bool,
        best: Mapping[str, int],
        split: tuple[int, ...],
    ) -> "LayerTable":
        """Return the table of a group for the values of axes: the same one for all questions with these figures."""
        network = group.transformer
        whole = {"tensor": network.num_heads, "context": network.sequence_length, "expert_tensor": network.num_heads}
        whole["expert"] = 1 if network.experts is None else network.experts.num_experts
        # So that other batches, and questions that pin some of them, share it.
        values: dict[str, Sequence[int]] = {
            name: tuple(sorted({*axes[name].values, *divisors(whole.get(name, 1))})) for name in FEW
        }
        if max(values["microbatch"], default=1) < len(_SIZES):
            values["microbatch"] = _SIZES
        tried = {name: axes[name].values or (0,) for name in ("sequence_parallel", "order")} | {"split": split}
        return _table(group.figures, tuple(best.items()), tuple(tried.items()), tuple(values.items()), has_links)

    def of(self, nodes: Columns, ask: Callable[[], None]) -> LeastSeconds:
        """Return the least seconds of nodes whose micro-batch is decided.

        Parameters
        ----------
        ask
            Raises an error where the search is over.
        """
        rows, back = self._looked_up(nodes, ask)
        return LeastSeconds._of_rows(rows[:, back])

    def of_each_sample(
        self,
        nodes: Columns,
        samples: Ints,
        microbatches: Sequence[int],
        ask: Callable[[], None],
        opened: Opened = lambda few: (few, np.arange(len(few["tensor"]))),
    ) -> LeastSeconds:
        """Return the least seconds of a micro-batch of the smallest size at the pace of the best one.

        Parameters
        ----------
        nodes
            Their degrees, as far as they are decided.
        samples
            That a replica has: no micro-batch has more. Shape (n,).
        microbatches, ask
            All that there may be, in order, at least one; and as for :meth:`of`.
        opened
            Gives some nodes in every way of degrees that are open, and whose each is, in order.
        """
        sizes, known = np.array(microbatches, dtype=np.int64), [name for name in DEGREES if name in nodes]
        first, back = distinct(nodes, known)
        few, owner = opened({name: nodes[name][first] for name in known})
        whole = {name: np.repeat(few[name], len(sizes)) for name in DEGREES}
        rows, found = self._looked_up({**whole, "microbatch": np.tile(sizes, len(owner))}, ask)
        each = rows[:, found].reshape(len(rows), len(owner), len(sizes)) / sizes
        each = np.minimum.accumulate(each, axis=2) * sizes[0]
        if len(owner) > len(first) or len(known) < len(DEGREES):
            least = np.full((len(first), len(rows), len(sizes)), inf)
            np.minimum.at(least, owner, each.swapaxes(0, 1))
            each = least.swapaxes(0, 1)
        place = np.maximum(np.searchsorted(sizes, samples, side="right") - 1, 0)
        return LeastSeconds._of_rows(each[:, back, place])

    def _looked_up(self, nodes: Columns, ask: Callable[[], None]) -> tuple[Floats, Ints]:
        """Return all rows that are known, and for each node which."""

        def in_parts(few: Columns) -> Floats:
            parts = []
            for start in range(0, len(few["tensor"]), _ROWS_AT_ONCE):
                ask()
                parts.append(self._worked_out({name: one[start : start + _ROWS_AT_ONCE] for name, one in few.items()}))
            return np.concatenate(parts, axis=1)

        return self._known.of(nodes, in_parts)

    def _worked_out(self, few: Columns) -> Floats:
        """Return the rows of some combinations: the least of all that is tried, which is worked out together."""
        transformer, size = self.figures.transformer, len(few["tensor"])
        orders, parallel = [0], [max(self.tried["sequence_parallel"])]
        if self.has_links:  # of one stage the pipeline's place in an order does not matter
            orders = [*{tuple(n for n in ORDERS[one] if n != "pipeline"): one for one in self.tried["order"]}.values()]
            parallel = [*self.tried["sequence_parallel"]]
        ways = list(product(parallel, orders))
        is_parallel, order = (np.repeat(np.array(one, dtype=np.int64), size) for one in zip(*ways, strict=True))
        chosen = {name: np.full(len(order), value) for name, value in self.best.items()}
        chosen |= {name: np.tile(column, len(ways)) for name, column in few.items()}
        chosen |= {"sequence_parallel": is_parallel, "order": order}
        chosen["overlap_tensor"] = chosen["overlap_tensor"] * is_parallel
        kept = np.arange(len(order))
        if self.has_links:  # what is not split in any way that may be has no layout, and any number is a bound
            known, tensor = np.array(self.tried["split"], dtype=np.int64), chosen["tensor"]
            kept = np.flatnonzero(np.isin(2 * tensor + is_parallel, known) | ~np.isin(tensor, known // 2))
        layouts = layouts_of({n: column[kept] for n, column in chosen.items()}, int(few["microbatch"].max(initial=1)))
        times = LeastSeconds.of_interval(transformer, interval_times(self._near, _nearest(layouts)))
        rows = (
            times.layer_s - times.layer_forward_s,
            times.layer_forward_s,
            times.embedding_forward_s,
            times.embedding_s - times.embedding_forward_s,
            times.head_forward_s,
            times.head_s - times.head_forward_s,
        )
        found = np.concatenate([np.atleast_2d(one) for one in rows])
        whole = np.full((len(found), len(order)), inf)
        whole[:, kept] = found
        return np.asarray(whole.reshape(len(whole), len(ways), size).min(axis=1))


Items = tuple[tuple[str, Any], ...]


@lru_cache(maxsize=_MOST_TABLES)
def _table(figures: LayerFigures, best: Items, tried: Items, values: Items, has_links: bool) -> LayerTable:
    """Return a table, which keeps what it has worked out: the same for equal arguments."""
    return LayerTable(figures=figures, best=dict(best), tried=dict(tried), values=dict(values), has_links=has_links)


def _fewest_hops(tiers: Sequence[Tier], hop_s: float) -> tuple[Tier, ...]:
    """Return tiers on which no group spread over them hops for less time than the nearest one.

    Of ``n_i`` units on tier i of k a ring takes ``sum (n_i - 1) l_i``, where latencies ``l_i`` do not fall with i: 8
    devices of a machine hop 7 times, and spread as 4 on each of 2 machines 3 times and once. A group that is spread has
    as many units on the outermost tier or more, and so many on the others that the product is no less: one of n on the
    innermost hops for ``k (n ** (1 / k) - 1) l_1`` or more besides, by the means, of whose share of ``(n - 1) l_1``
    that of a whole machine is the least.
    """
    size, number = tiers[0].size, len(tiers)
    innermost = number * (size ** (1 / number) - 1) / (size - 1) if size > 1 else 1.0
    shares = [innermost, *[0.0] * (number - 2), 1.0][:number]
    return tuple(
        replace(tier, by_stride=(), latency_s=(tier.latency_s + hop_s) * share)
        for tier, share in zip(tiers, shares, strict=True)
    )


def _nearest(layouts: Layouts) -> Layouts:
    """Return layouts with no more data ranks than experts need, so that their ranks are near."""
    *_, (data, _) = axes_of(layouts)["expert"]
    return replace(layouts, data=data)
