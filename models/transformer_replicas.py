"""What replicas exchange in a training step: gradients, and under ZeRO weights; and the tied embedding's gradient.

Per device and step, over the ``context x data`` ranks that hold the same dense weights, or the fewer that hold the same
experts ([R] sections 5 and 7):

- stage 0: an all-reduce of the gradients;
- stages 1 and 2: a reduce-scatter of the gradients and an all-gather of the updated weights, the same volume;
- stage 3: layer by layer an all-gather of the weights before forward and another before backward, for every micro-batch
  where weights are freed in between, and a reduce-scatter of the gradients: 1.5 times the volume of one all-reduce.

A tied embedding stands on the first and on the last stage, which add up its gradient by one all-reduce a step
(D. Narayanan et al., SC21, arXiv 2104.04473, section 2.2).

Parameters are those of the fullest stage, as :mod:`planner.models.transformer_parameters` spreads them; stages hold
equal parts of all layers of each kind. [R]: S. Rajbhandari et al., SC20, arXiv 1910.02054.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.models.group_costs import Group, all_reduce_s, gather_s
from planner.models.layouts import Layouts
from planner.models.transformer_parameters import (
    block_parameters,
    embedding_parameters,
    head_parameters,
    vocabulary_rows,
)
from planner.transformer import Transformer

__all__ = ["ReplicaExchange", "StageParameters", "replica_exchanges", "replica_times", "stage_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageParameters:
    """Parameters on one device, by what they are; arrays of one element a layout.

    Attributes
    ----------
    dense, experts
        Of the layers of one stage: all but routed experts, and these.
    first, last
        More on the first stage (embedding), and on the last (head, and a copy of a tied embedding where it is another
        stage).
    tied
        Of the matrix that first and last stage both hold; 0 where there is none or one stage.
    """

    dense: Floats
    experts: Floats
    first: Floats
    last: Floats
    tied: Floats

    @property
    def ends(self) -> Floats:
        """More on the fuller end of the pipeline; what the ends hold together where they are one stage."""
        return np.maximum(self.first, self.last)


def stage_parameters(transformer: Transformer, layouts: Layouts) -> StageParameters:
    """Return the parameters of one stage on one device."""
    dense = experts = np.zeros(1)
    for kind, count in Counter(transformer.layer_kinds).items():
        held = block_parameters(transformer, kind, layouts)
        dense, experts = dense + count * held.shared, experts + count * held.routed
    first, last = embedding_parameters(transformer, layouts), head_parameters(transformer, layouts)
    is_one = layouts.pipeline == 1
    is_tied = transformer.has_tied_embeddings and transformer.head in ("language", "masked_language")
    table = vocabulary_rows(transformer, layouts) * transformer.hidden_size
    return StageParameters(
        dense=dense / layouts.pipeline,
        experts=experts / layouts.pipeline,
        first=np.where(is_one, first + last, first),
        last=np.where(is_one, first + last, last),
        tied=np.where(is_one, 0.0, table if is_tied else 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaExchange:
    """What replicas exchange in a step, on the fullest stage; arrays of one element a layout.

    Attributes
    ----------
    name, group
        Dense, experts or tied; and which ranks.
    gradient_bytes, weight_bytes
        Of all that is reduced, and of all that is gathered at once, however many pieces it is cut into.
    num_pieces
        Buckets or layers: operations that the bytes are cut into.
    all_reduces, reduce_scatters, gathers
        How often a step does each of them over all the bytes.
    """

    name: str
    group: str
    gradient_bytes: Floats
    weight_bytes: Floats
    num_pieces: Floats
    all_reduces: Floats
    reduce_scatters: Floats
    gathers: Floats

    @property
    def volume_bytes(self) -> Floats:
        """Bytes in all, an all-reduce counted twice: once there and once back."""
        return (2 * self.all_reduces + self.reduce_scatters) * self.gradient_bytes + self.gathers * self.weight_bytes


def replica_exchanges(
    transformer: Transformer,
    layouts: Layouts,
    *,
    gradient_bytes: float = 2.0,
    weight_bytes: float = 2.0,
    bucket_bytes: float = float("inf"),
    frees_weights: bool = True,
    reduces_every_microbatch: bool = False,
    shards_gradients: bool = True,
) -> tuple[ReplicaExchange, ...]:
    """Return what replicas exchange in one step.

    Parameters
    ----------
    gradient_bytes, weight_bytes
        Of one parameter, as it travels.
    bucket_bytes
        Largest piece of gradients that is sent at once; ZeRO-3 sends layer by layer.
    frees_weights
        Whether ZeRO-3 frees a layer's weights after use, so that every micro-batch gathers them for each way; else
        they are gathered once a step.
    reduces_every_microbatch
        Whether ZeRO-2 and 3 reduce the gradients of every micro-batch, rather than of the step.
    shards_gradients
        Whether ZeRO-1 reduces by a reduce-scatter; else by an all-reduce, as without ZeRO.
    """
    held = stage_parameters(transformer, layouts)
    layers = np.maximum(transformer.num_layers / layouts.pipeline, 1.0)
    zero, passes = layouts.zero, layouts.num_microbatches
    gathers = np.where(zero == 3, 2 * passes if frees_weights else 1, np.where(zero >= 1, 1, 0))
    is_whole = (zero == 0) | ((zero == 1) & (not shards_gradients))
    scatters = np.where((zero >= 2) & reduces_every_microbatch, passes, np.where(is_whole, 0, 1))
    found = []
    for name, group, parameters in (
        ("dense", "replicas", held.dense + held.ends),
        ("experts", "expert_replicas", held.experts),
    ):
        reduced = gradient_bytes * parameters
        found.append(
            ReplicaExchange(
                name=name,
                group=group,
                gradient_bytes=reduced,
                weight_bytes=weight_bytes * parameters,
                num_pieces=np.where(zero == 3, layers, np.maximum(np.ceil(reduced / bucket_bytes), 1.0)),
                all_reduces=np.where(is_whole, 1.0, 0.0),
                reduce_scatters=scatters.astype(np.float64),
                gathers=gathers.astype(np.float64),
            )
        )
    return (*found, _tied(layouts, gradient_bytes * held.tied))


def _tied(layouts: Layouts, size_bytes: Floats) -> ReplicaExchange:
    """Return the exchange of the tied embedding's gradient between the first and the last stage."""
    nothing = np.zeros(1)
    return ReplicaExchange(
        name="tied",
        group="ends",
        gradient_bytes=size_bytes,
        weight_bytes=nothing,
        num_pieces=np.ones(1),
        all_reduces=np.where(layouts.pipeline > 1, 1.0, 0.0),
        reduce_scatters=nothing,
        gathers=nothing,
    )


def replica_times(
    exchanges: Sequence[ReplicaExchange], groups: Mapping[str, Group]
) -> Mapping[str, tuple[Floats, Floats]]:
    """Return, by name, the seconds of a step's reductions and of its gathers, if nothing hides them."""
    found = {}
    for one in exchanges:
        group, pieces = groups[one.group], one.num_pieces
        reduced, gathered = one.gradient_bytes / pieces, one.weight_bytes / pieces
        reduction_s = one.all_reduces * all_reduce_s(group, reduced) + one.reduce_scatters * gather_s(group, reduced)
        found[one.name] = (pieces * reduction_s, pieces * one.gathers * gather_s(group, gathered))
    return found
