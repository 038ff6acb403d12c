"""The decisions of the family ``hybrid``: one layout of a transformer, what it must keep to, and what is left open.

A rule is asked by the search for many layouts at once, and by ``predict`` for the one given: both ask the same. What a
decision is called, may be and means stands in its row (:data:`planner.decisions.LAYOUT`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from planner.decisions import DECISIONS, LAYOUT, NO_MODULES, TURNED, LayoutDecisions, cut_shape, has_depths_together
from planner.frozen import frozen
from planner.models.layouts import (
    SCHEDULE_NAMES,
    Bools,
    ContextMethod,
    Ints,
    Layouts,
    Recompute,
    Schedule,
    dealt_layers,
    folded_layers,
)
from planner.models.offload import OFFLOAD_SETS, absent_modules_words, modules_beside_graphs
from planner.models.optimizers import OPTIMIZERS
from planner.models.orders import fewest_microbatches
from planner.models.programs import CORES, MEGATRON_CORE, PRIMUS, PROGRAMS
from planner.models.recomputation import MODULE_SETS, absent_words
from planner.models.tiers import DEGREES, ORDERS
from planner.models.transformer_communication import has_heads
from planner.problem import Problem, Training
from planner.schedules import NAMED
from planner.transformer import Transformer

NAME = "hybrid"
ORDER_NAMES = LAYOUT["order"].names  # by planner.models.tiers.ORDERS
# The keys of ``fix`` whose value is that of one decision of a layout; what else the family decides is told in Space.
PINS: Mapping[str, str] = {row.key: row.block[NAME] for row in DECISIONS if NAME in row.block and not row.block_values}

# The degrees, in the order in which they are listed.
COARSE = ("tensor", "context", "pipeline", "data", "expert", "expert_tensor")
# What goes with stages on several kinds of machines, with replicas that differ, and with the cuts that are searched:
# these values, and no higher ZeRO.
OF_CUTS: Mapping[str, int | str | bool] = {
    "schedule": "1f1b",
    "interleave": 1,
    "overlap_expert": False,
    "offload_optimizer": False,
    "recompute_layers": 0,
    "shard": 0,
    "offload_layers": 0,
    "offload_percent": 100,
    "offload_modules": NO_MODULES,
}
CODES_OF_CUTS = {name: LAYOUT[name].code(value) for name, value in OF_CUTS.items()}
MOST_ZERO_OF_CUTS = 1

AWAY = ("offload_layers", "offload_modules")  # what activations wait on the host
Columns = Mapping[str, Ints]  # one column a decision
_ALL_PERCENT = 100
_MOST_WHOLE = 1 << 20  # samples of a micro-batch
_MOST_TRIED = 1 << 20  # values of one key that are looked at for the nearest one
_ZIGZAG = 2  # pieces of the sequence on each context rank: an early and a late one, so that causal attention is even
_A = {"tensor": "a tensor degree", "expert": "an expert degree", "expert_tensor": "a tensor degree of experts"}
_SHARDS_WEIGHTS = 2  # from this stage on, ZeRO frees gradients or weights between uses


@frozen
class PipelineStage:
    """One pipeline stage: its layers, and the group of machines of all its devices (None where that is not asked)."""

    layers: int
    machines: str | None = None

    def to_document(self) -> dict[str, object]:
        """Return the entry that ``predict`` reads back."""
        return {"layers": self.layers} if self.machines is None else {"machines": self.machines, "layers": self.layers}


@frozen
class ReplicaGroup:
    """Whole replicas on one group of machines: how many, and the micro-batches of each."""

    machines: str
    data: int
    num_microbatches: int

    def to_document(self) -> dict[str, object]:
        """Return the entry that ``predict`` reads back."""
        return {"machines": self.machines, "data": self.data, "num_microbatches": self.num_microbatches}


@frozen
class HybridConfiguration(LayoutDecisions):
    """One layout."""

    global_batch_size: int  # samples of a step
    # the group of machines that trains, where stages hold equal layers; None where all machines are equal
    machines: str | None = None
    # empty where the layers are dealt out evenly, on one group. Else one for each of ``pipeline``, in order, or where
    # stages have chunks one for each chunk, in the order of the network; they name machines where there are several
    # kinds and no ``replicas``
    stages: tuple[PipelineStage, ...] = ()
    replicas: tuple[ReplicaGroup, ...] = ()  # empty, or one for each kind of machines; they add up to ``data``

    @property
    def is_even(self) -> bool:
        """Whether layers are dealt out evenly to the stages, on one group of machines."""
        return not self.stages

    @property
    def is_plain_cut(self) -> bool:
        """Whether stages are listed that may stand on several groups, or replicas: without chunks, in 1F1B."""
        return bool(self.stages) and all(getattr(self, name) == value for name, value in OF_CUTS.items())

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of machines that train, in the order of the pipeline; none where all are equal."""
        names = [one.machines for one in (self.replicas or self.stages)] or [self.machines]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @property
    def devices_of(self) -> Mapping[str | None, int]:
        """Devices by group; all stand under None where machines are equal."""
        found: dict[str | None, int] = {}
        each = self.tensor * self.context
        for one in self.replicas:
            found[one.machines] = each * self.pipeline * one.data
        for stage in () if self.replicas else self.stages[: self.pipeline]:
            found[stage.machines] = found.get(stage.machines, 0) + each * self.data
        return found or {self.machines: self.num_devices}

    @property
    def num_devices(self) -> int:
        """Devices that train."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def num_microbatches(self) -> int:
        """Of one step, on the replica that does most."""
        each = [one.num_microbatches for one in self.replicas]
        return max(each, default=self.global_batch_size // (self.data * self.microbatch))

    @property
    def is_folded(self) -> bool:
        """Whether the stages turn at the last device; of DualPipe both copies meet there."""
        return self.schedule in SCHEDULE_NAMES[Schedule.ZB_V :]

    @property
    def num_chunks(self) -> int:
        """Virtual stages of the network."""
        return self.pipeline * self.interleave

    def chunk_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return the layers of every virtual stage, in the order of the network: see :mod:`planner.models.orders`.

        >>> HybridConfiguration(global_batch_size=8, pipeline=4).chunk_layers(30)
        (7, 8, 8, 7)
        """
        if not self.is_even:
            return tuple(one.layers for one in self.stages)
        if self.is_folded:
            return tuple(folded_layers(num_layers, self.num_chunks // 2).tolist())
        return tuple(dealt_layers(num_layers, self.pipeline, self.interleave).ravel().tolist())

    def pipeline_layout(self, num_layers: int) -> str | None:
        """Return the layers of every virtual stage as Megatron-LM writes them: embedding, layers, head.

        None where they are alike, or would be with embedding and head as a layer each, for which it has other options.
        """
        first, *between, last = layers = self.chunk_layers(num_layers) if self.pipeline > 1 else (num_layers, 0)
        is_alike = 1 in (len({*layers}), len({first + 1, *between, last + 1}))
        if self.pipeline == 1 or (self.is_even and is_alike):
            return None
        return f"E{'|'.join(f't*{one}' * (one > 0) for one in layers)}L"

    @property
    def degree_words(self) -> str:
        """The degrees that are not 1."""
        return ", ".join(self._degrees(COARSE))

    def _degrees(self, names: Sequence[str]) -> list[str]:
        """Return those degrees that are not 1, in words."""
        return [f"{name.replace('_', ' ')} {getattr(self, name)}" for name in names if getattr(self, name) > 1]

    @property
    def more_than_a_copy(self) -> list[str]:
        """What of it makes a device hold less than the whole network and its optimiser's state, in words."""
        found = self._degrees([name for name in COARSE if name != "data"])
        found += [f"ZeRO {self.zero}"] if self.zero else []
        return found + (["the optimiser's state in host memory"] if self.offload_optimizer else [])

    @property
    def is_recomputed(self) -> bool:
        """Whether activations are computed again in the backward pass."""
        return self.recompute != "none"

    @property
    def num_copies(self) -> int:
        """How many copies of all states ZeRO keeps: over parts of the data ranks, more than one."""
        return self.data // (self.shard or self.data)

    @property
    def has_modules_away(self) -> bool:
        """Whether inputs of some modules wait in host memory."""
        return self.offload_modules != NO_MODULES

    @property
    def _recompute_words(self) -> str:
        """What is computed again."""
        if self.recompute_modules != LAYOUT["recompute_modules"].default:
            return f"recomputation of {', '.join(self.recompute_modules.split())}"
        some = f" of {self.recompute_layers} layer{'s' * (self.recompute_layers > 1)} a stage"
        some = some.replace("a stage", "a chunk") if self.interleave > 1 else some
        return f"{self.recompute} recomputation{some * (self.recompute_layers > 0)}"

    @property
    def headline(self) -> str:
        """The degrees that are not 1, what goes with them, and what differs between stages or replicas."""
        parts = [self.degree_words] if self.degree_words else []
        parts += [f"{self.interleave} chunks"] if self.interleave > 1 and not self.is_folded else []
        parts += [NAMED[self.schedule].title] if self.schedule not in ("gpipe", "1f1b") else []
        parts += [f"micro-batches of {self.microbatch}"]
        parts += [f"ZeRO {self.zero}{f' over {self.shard} data ranks' * (self.shard > 0)}"] if self.zero else []
        parts += [f"{self.context_method} context".replace("_", "-")] * (self.context_method != "ring")
        parts += [self._recompute_words] if self.is_recomputed else []
        some = f"{self.offload_percent} % of the " * (self.offload_percent < _ALL_PERCENT)
        parts += [f"{some}optimiser on the host"] if self.offload_optimizer else []
        parts += [f"activations of {self.offload_layers} layers on the host"] if self.offload_layers else []
        parts += [f"inputs of {', '.join(self.offload_modules.split())} on the host"] * self.has_modules_away
        found = f"{self.num_devices} device{'s' * (self.num_devices > 1)}: {', '.join(parts)}"
        if self.replicas:
            rows = [
                f"{one.data} on {one.machines} x {one.num_microbatches} micro-batch{'es' * (one.num_microbatches != 1)}"
                for one in self.replicas
            ]
            return f"{found}; replicas: {', '.join(rows)}"
        return found if self.is_even else f"{found}; {self.stage_words}"

    @property
    def stage_words(self) -> str:
        """The layers of the stages, in short: ``layers by stage: 2 x 8, 7 on old; 9 on new``."""
        words = []
        for name, stages in groupby(self.stages, key=lambda one: one.machines):
            listed = _listed(one.layers for one in stages)
            words.append(listed + (f" on {name}" if name is not None else ""))
        return f"layers by {'virtual ' * (self.interleave > 1)}stage: {'; '.join(words)}"

    def chunk_words(self, num_layers: int) -> str | None:
        """Return the layers of virtual stages that are dealt out and differ: ``layers by virtual stage: 7 x 4, 3``."""
        layers = self.chunk_layers(num_layers)
        if not self.is_even or len({*layers}) == 1:
            return None
        return f"layers by {'virtual ' * (self.interleave > 1)}stage: {_listed(layers)}"

    def to_document(self) -> dict[str, object]:
        """Return the block that ``predict`` reads back."""
        shown = {
            name: getattr(self, name)
            for name, row in LAYOUT.items()
            if row.is_shown_always or getattr(self, name) != row.default
        }
        found = {"global_batch_size": self.global_batch_size, **shown}
        found |= {} if self.machines is None else {"machines": self.machines}
        found |= {"stages": [one.to_document() for one in self.stages]} if self.stages else {}
        return found | ({"replicas": [one.to_document() for one in self.replicas]} if self.replicas else {})

    def codes(self) -> dict[str, int]:
        """Return every decision as a number."""
        return {name: row.code(getattr(self, name)) for name, row in LAYOUT.items()}

    @classmethod
    def of(
        cls,
        codes: Mapping[str, int],
        *,
        batch: int,
        machines: str | None = None,
        stages: Sequence[PipelineStage] = (),
        replicas: Sequence[ReplicaGroup] = (),
    ) -> "HybridConfiguration":
        """Return the configuration of decisions as numbers, and of what differs between stages or replicas."""
        found: dict[str, Any] = {name: row.decoded(codes[name]) for name, row in LAYOUT.items()}
        return cls(global_batch_size=batch, machines=machines, stages=tuple(stages), replicas=tuple(replicas), **found)


def _listed(layers: Iterable[int]) -> str:
    """Return numbers of layers in short: ``2 x 8, 7``."""
    runs = [(one, len(list(run))) for one, run in groupby(layers)]
    return ", ".join(f"{count} x {one}" if count > 1 else str(one) for one, count in runs)


def pinned_cut(problem: Problem) -> tuple[tuple[int, ...], int, int] | None:
    """Return the layers of every virtual stage that are pinned, with the stages and the chunks on a device; or None."""
    layers = problem.fixed.get("layers_per_stage")
    return None if layers is None else (tuple(layers), *cut_shape(layers, problem.fixed))


def is_dealt_evenly(layers: Sequence[int], stages: int, chunks: int, schedule: str | None) -> bool:
    """Whether a cut is the even one, whichever schedule there may be (None: it is open)."""
    number = sum(layers)
    straight = [*layers] == dealt_layers(number, stages, chunks).ravel().tolist()
    if chunks != 2 or (schedule is not None and schedule not in TURNED):  # of a V
        return straight
    turned = [*layers] == folded_layers(number, stages).tolist()
    return turned if schedule is not None else straight and turned


_DOUBLED = ("data", "interleave")  # of DualPipe


def layouts_of(columns: Mapping[str, object], batch: int) -> Layouts:
    """Return layouts of columns of numbers, one column a decision; micro-batches follow from the batch."""
    found = {name: np.asarray(columns[name], dtype=bool if row.is_flag else None) for name, row in LAYOUT.items()}
    number = batch // (found["data"] * found["microbatch"])
    if found["microbatch"].max(initial=0) > _MOST_WHOLE:
        found["microbatch"] = found["microbatch"].astype(np.float64)  # times elements it is beyond what integers hold
    if (is_dual := found["schedule"] == Schedule.DUALPIPE).any():  # as it stands in Layouts
        found["pipeline"] = np.where(is_dual, found["pipeline"] // 2, found["pipeline"])
        found["data"], found["interleave"] = (np.where(is_dual, 2 * found[name], found[name]) for name in _DOUBLED)
        number = np.where(is_dual, number // 2, number)
    return Layouts(num_microbatches=number, **found)


# -- rules -------------------------------------------------------------------------------------------------------------


@frozen
class LayoutRule:
    """A condition on some decisions."""

    key: str  # of a spec's block: the decision to change first
    names: tuple[str, ...]  # the decisions that it asks for
    holds: Callable[[Columns], Bools]  # its answer for many layouts
    words: Callable[[Mapping[str, int]], str]  # what is wrong with one that breaks it, by its decisions


def _rule(key: str, names: str, holds: Callable[[Columns], Bools], words: str) -> LayoutRule:
    """Return a rule on some decisions, named in one text, whose words take them by name."""
    return LayoutRule(key=key, names=tuple(names.split()), holds=holds, words=lambda one: words.format(**one))


@lru_cache(maxsize=64)  # each question of a plan asks for them again
def rules_of(
    transformer: Transformer, batch: int, *, is_dealt: bool = True, program: str = MEGATRON_CORE
) -> tuple[LayoutRule, ...]:
    """Return the rules of every layout of a network and a batch, the cheapest to ask first.

    ``is_dealt``: whether layers are dealt out evenly, rather than stage by stage.
    """
    cut = _cut_rules(transformer) if is_dealt else ()
    if not transformer.trained.is_all:
        cut = (*cut, *_frozen_rules())
    again = (
        *_recompute_rules(transformer),
        *_activation_rules(transformer),
        *_module_offload_rules(transformer),
        *_shard_rules(),
        *_zero_rules(program),
    )
    own = _primus_rules(transformer) if program == PRIMUS else ()
    cut = (*own, *_window_rules(transformer, program), *cut)
    return (*_split_rules(transformer), *cut, *_expert_rules(transformer), *_schedule_rules(batch, program), *again)


def _window_rules(transformer: Transformer, program: str) -> Iterator[LayoutRule]:
    """Yield that keys of windows pass round no ring in Transformer Engine, which Megatron-Core calls.

    "The context parallel running configs cannot support sliding window" attention but by ``all_gather`` and ``a2a``
    (``attention/dot_product_attention/context_parallel.py``).
    """
    if program not in CORES or transformer.window is None:
        return
    whole = (ContextMethod.ALL_GATHER, ContextMethod.ULYSSES)
    yield _rule(
        "context_method",
        "context context_method",
        lambda one: (one["context"] == 1) | np.isin(one["context_method"], whole),
        f"{program} passes keys round no ring where attention has windows. Write all_gather or ulysses.",
    )


def _primus_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield what Primus asserts of its zero-bubble schedules (``validate_arguments`` of ``zbpp_utils.py``)."""
    layers, is_tied = transformer.num_main_layers, transformer.has_tied_embeddings
    yield _rule(
        "schedule",
        "pipeline schedule",
        lambda one: ~_is_folded(one) | (layers % (2 * one["pipeline"]) == 0),
        f"in schedules that turn at the last device primus has two equal chunks a stage, and {layers} layers do not "
        f"divide into those of {{pipeline}} stages.",
    )
    yield _rule(
        "schedule",
        "schedule",
        lambda one: (one["schedule"] < Schedule.ZB_H1) | (not is_tied),
        "primus has zero-bubble schedules of networks with an output layer of its own alone "
        "(dnn.transformer.tied_embeddings: false).",
    )


def uneven_rules(program: str) -> tuple[LayoutRule, ...]:
    """Return what layouts ask for whose chunks differ beyond how layers are dealt out: Primus asserts equal ones."""
    if program != PRIMUS:
        return ()
    words = f"in zero-bubble schedules {PRIMUS} has equal chunks, and their layers differ."
    names = "schedule interleave"
    return (_rule("schedule", names, lambda one: (one["schedule"] < Schedule.ZB_H1) | (one["interleave"] == 1), words),)


def depth_rules(transformer: Transformer, cut: Sequence[int]) -> tuple[LayoutRule, ...]:
    """Return that a cut has the depths of multi-token prediction together, which depends on where stages turn."""

    def are_together(one: Columns) -> Bools:
        return has_depths_together(
            transformer.num_mtp_layers, np.array(cut)[:, None], one["pipeline"], is_folded=_is_folded(one)
        )

    words = "the last chunk of a schedule that turns at the last device holds all depths of multi-token prediction."
    return (_rule("schedule", "pipeline schedule", are_together, words),) if len(cut) > 1 else ()


def _split_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield what the tensor degree divides, heads and widths, and how the sequence may be split."""
    heads, keys, length = transformer.num_heads, transformer.num_kv_heads, transformer.sequence_length
    widths = [("tensor", "heads", heads)] if transformer.has_attention else []
    widths += [("tensor", what, number) for what, number in _scan_heads(transformer)]
    if transformer.has_dense:
        widths.append(("tensor", "columns of the feed-forward part", transformer.feed_forward_size))
    if transformer.experts is not None:
        widths.append(("expert_tensor", "columns of an expert", transformer.experts.expert_size))
    if (encoder := transformer.encoder) is not None:
        widths.append(("tensor", "heads of the encoder", encoder.num_heads))
        widths.append(("tensor", "columns of the encoder's feed-forward part", encoder.feed_forward_size))
    for key, what, size in widths:
        yield _rule(
            key,
            key,
            lambda one, key=key, size=size: size % one[key] == 0,  # type: ignore[misc]  # bound now
            f"{size:,} {what} do not divide by {_A[key]} of {{{key}}}.",
        )
    if transformer.has_attention:
        yield _rule(
            "tensor",
            "tensor",
            lambda one: (keys % one["tensor"] == 0) | (one["tensor"] % keys == 0),
            f"{keys} heads of keys and values can be neither shared out over a tensor degree of {{tensor}} nor copied "
            f"evenly.",
        )
    yield from _scan_rules(transformer)
    pieces = _ZIGZAG if transformer.is_causal else 1
    each = f"{pieces} equal pieces for each context rank" if pieces > 1 else "equal pieces"
    yield _rule(
        "context",
        "context",
        lambda one: (one["context"] == 1) | (length % (pieces * one["context"]) == 0),
        f"a sequence of {length:,} tokens does not split into {each} of {{context}}.",
    )
    yield _rule(
        "context_method",
        "tensor context context_method",
        lambda one: has_heads(transformer, one["context"], one["tensor"], one["context_method"]),
        f"{keys} heads of keys and values, over a tensor degree of {{tensor}}, cannot be shared out by {{context}} "
        f"context ranks so: ulysses gives each of them whole heads, hierarchical each of as many neighbours as share "
        f"them out evenly, and leaves some ranks for a ring.",
    )
    yield _rule(
        "sequence_parallel",
        "tensor sequence_parallel",
        lambda one: (one["sequence_parallel"] == 0) | (one["tensor"] > 1),
        "sequence parallelism splits the sequence over a tensor group, and the tensor degree is {tensor}.",
    )
    yield _rule(
        "sequence_parallel",
        "tensor context sequence_parallel",
        lambda one: (one["sequence_parallel"] == 0) | (length // one["context"] % one["tensor"] == 0),
        f"a sequence of {length:,} tokens, split over {{context}} context ranks, does not split again over a tensor "
        f"degree of {{tensor}}.",
    )
    yield _rule(
        "overlap_tensor",
        "tensor sequence_parallel overlap_tensor",
        lambda one: (one["overlap_tensor"] == 0) | (one["tensor"] == 1) | (one["sequence_parallel"] == 1),
        "Megatron-Core overlaps the tensor-parallel exchange under sequence parallelism only.",
    )
    for names, holds, words in (
        ("expert", lambda one: one["expert"] > 1, "where experts are spread: the expert degree is {expert}."),
        (
            "schedule",
            lambda one: (one["schedule"] == Schedule.ONE_F_ONE_B) | (one["schedule"] >= Schedule.DUALPIPE),
            "with 1F1B (DualPipe is made for it).",
        ),
        (
            "pipeline schedule interleave",
            lambda one: (one["pipeline"] == 1) | (one["interleave"] > 1) | (one["schedule"] >= Schedule.DUALPIPE),
            "in a pipeline of {pipeline} stages with several chunks each: {interleave} is too few.",
        ),
        ("recompute", lambda one: one["recompute"] < Recompute.FULL, "where layers are not recomputed in full."),
        (
            "zero",
            lambda one: one["zero"] < _SHARDS_WEIGHTS,
            "with ZeRO 0 and 1: it calls layers in parts, past the hooks that gather a whole one.",
        ),
    ):
        yield _rule(
            "overlap_expert",
            f"{names} overlap_expert",
            lambda one, holds=holds: (one["overlap_expert"] == 0) | holds(one),  # type: ignore[misc]  # bound now
            f"Megatron-Core runs the experts' exchange beside another micro-batch only {words}",
        )


def _scan_heads(transformer: Transformer) -> list[tuple[str, int]]:
    """Return what tensor ranks share out of mixers whose heads have a state: heads, or groups of them."""
    mamba, found = transformer.mamba, _exchanged_heads(transformer)
    if mamba is not None:  # whose heads are a multiple of its groups
        found[0] = ("groups of Mamba's heads", mamba.num_groups)
    return found


def _exchanged_heads(transformer: Transformer) -> list[tuple[str, int]]:
    """Return the heads of such mixers, of which each context rank gets some."""
    mamba, delta, linear = transformer.mamba, transformer.delta, transformer.linear
    found = [("heads of Mamba", mamba.num_heads)] if mamba is not None else []
    found += [("heads of keys of the delta rule", delta.num_key_heads)] if delta is not None else []
    return found + ([("heads of linear attention", linear.num_heads)] if linear is not None else [])


def _scan_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield over how many context ranks the heads of such mixers may be exchanged.

    Megatron-Core: heads divide by tensor x context; of Mamba's groups each rank has whole ones, or as many ranks have
    each (``megatron/core/ssm/mamba_context_parallel.py``).
    """
    for what, number in _exchanged_heads(transformer):
        yield _rule(
            "context",
            "tensor context",
            lambda one, number=number: (one["context"] == 1) | (number % (one["tensor"] * one["context"]) == 0),  # type: ignore[misc]  # bound now
            f"{number:,} {what} do not divide by tensor x context ranks, {{tensor}} x {{context}}.",
        )
    if transformer.mamba is None:
        return
    groups = transformer.mamba.num_groups

    def are_whole(one: Columns) -> Bools:
        each = np.maximum(groups // one["tensor"], 1)
        return np.asarray((each % one["context"] == 0) | (one["context"] % each == 0))

    yield _rule(
        "context",
        "tensor context",
        are_whole,
        f"{groups} groups of Mamba's heads, split over a tensor degree of {{tensor}}, can be neither shared out over "
        f"{{context}} context ranks nor copied evenly.",
    )


def _frozen_rules() -> Iterator[LayoutRule]:
    """Yield which schedules go with frozen weights: those that put off no gradients of weights."""
    yield _rule(
        "schedule",
        "schedule",
        lambda one: (one["schedule"] == Schedule.ONE_F_ONE_B) | (one["schedule"] == Schedule.GPIPE),
        "this schedule fills waits by the gradients of weights, and frozen ones have none. Write 1f1b or gpipe.",
    )


def _cut_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield into how many stages and chunks layers can be dealt out (:func:`planner.models.layouts.dealt_layers`).

    A stage holds a layer at least. Of chunks the first may hold the embedding alone, and the last the head (Llama 3,
    arXiv 2407.21783, section 3.3.2).
    """
    layers = transformer.num_layers
    few = f"{layers} layers are fewer than {{pipeline}} stages, and each holds one at least."
    yield _rule("pipeline", "pipeline", lambda one: one["pipeline"] <= layers, few)
    yield _rule(
        "interleave",
        "pipeline schedule interleave",
        lambda one: one["pipeline"] * one["interleave"] <= layers + np.where(_is_folded(one), 0, 2),
        f"{layers} layers, with embedding and head as a layer each, are fewer than {{pipeline}} stages x "
        f"{{interleave}} chunks, and each holds one at least.",
    )
    if (depths := transformer.num_mtp_layers) > 0:

        def has_room(one: Columns) -> Bools:
            most = -(-layers // one["pipeline"])
            last = most - (most * one["pipeline"] > layers)  # of a V the first device is the last one
            return np.asarray(np.where(_is_folded(one), last - last // 2, last // one["interleave"]) >= depths)

        yield _rule(
            "interleave",
            "pipeline schedule interleave",
            has_room,
            f"{depths} depth{'s' * (depths > 1)} of multi-token prediction run where the logits are, and the last "
            f"chunk of {{pipeline}} stages x {{interleave}} chunks has too few of {layers} layers.",
        )


def is_spread(one: Mapping[str, Ints | int], ranks: Ints | int) -> Bools | bool:
    """Return whether experts, and the devices that share each, divide the devices that hold the same layers.

    ``ranks``: the ``context x data`` ranks of them.
    """
    return one["tensor"] * ranks % (one["expert"] * one["expert_tensor"]) == 0


def _expert_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield over how many devices experts may be spread, and how many may share one."""
    if transformer.experts is None:
        for key, what in _A.items():
            if key != "tensor":
                words = f"the network has no experts, and {what} of {{{key}}} is asked for."
                yield _rule(key, key, lambda one, key=key: one[key] == 1, words)  # type: ignore[misc]  # bound now
        return
    yield _rule(
        "expert_tensor",
        "tensor expert_tensor",
        lambda one: one["tensor"] % one["expert_tensor"] == 0,
        "the tensor degree of experts {expert_tensor} does not divide the tensor degree {tensor}.",
    )
    yield _rule(
        "sequence_parallel",
        "tensor sequence_parallel",
        lambda one: (one["tensor"] == 1) | (one["sequence_parallel"] == 1),
        "Megatron-Core trains experts over a tensor degree of {tensor} under sequence parallelism only.",
    )
    number = transformer.experts.num_experts
    words = f"{number} experts do not spread evenly over an expert degree of {{expert}}."
    yield _rule("expert", "expert", lambda one: number % one["expert"] == 0, words)

    def words_of(one: Mapping[str, int]) -> str:
        ranks = one["tensor"] * one["context"] * one["data"]
        whole = " With whole experts, expert_tensor: 1, it does." if ranks % one["expert"] == 0 else ""
        return (
            f"the expert degree {one['expert']}, of {one['expert_tensor']} devices each, does not divide the "
            f"{one['tensor']} tensor x {one['context']} context x {one['data']} data ranks that hold the same layers."
            f"{whole}"
        )

    yield LayoutRule(
        key="expert",
        names=("tensor", "context", "data", "expert", "expert_tensor"),
        holds=lambda one: np.asarray(is_spread(one, one["context"] * one["data"])),
        words=words_of,
    )


def _is_folded(one: Mapping[str, Any]) -> Any:
    """Return whether stages turn at the last device, with two chunks each."""
    return (one["schedule"] >= Schedule.ZB_V) & (one["schedule"] != Schedule.DUALPIPE)


def microbatches_a_stage(schedule: str, program: str) -> int:
    """Return how many micro-batches for each stage a schedule of a program needs at least; 0: it takes any number."""
    if schedule == "1f1b":
        return int(PROGRAMS[program].fills_stages)
    least = fewest_microbatches(schedule, 1) if schedule in SCHEDULE_NAMES else 0
    return least if least > 1 else 0


def _schedule_rules(batch: int, program: str) -> Iterator[LayoutRule]:
    """Yield how the batch is dealt out, what needs stages, when chunks may be interleaved, and what ZeRO 2 and 3 bar.

    Of chunks: Narayanan et al., arXiv 2104.04473, section 2.2.
    """

    def number_of(one: Mapping[str, Any]) -> Any:
        return batch // (one["data"] * one["microbatch"])

    words = f"a batch of {batch:,} samples does not divide by {{data}} data ranks"
    yield _rule("data", "data", lambda one: batch % one["data"] == 0, f"{words}.")
    yield _rule(
        "microbatch",
        "data microbatch",
        lambda one: batch % (one["data"] * one["microbatch"]) == 0,
        f"{words} x micro-batches of {{microbatch}}.",
    )
    yield _rule(
        "pipeline",
        "pipeline schedule",
        lambda one: (one["schedule"] < Schedule.ZB_H1) | (one["pipeline"] > 1),
        "a zero-bubble schedule orders the work of a pipeline, and there is one stage.",
    )
    yield _rule(
        "pipeline",
        "pipeline schedule",
        lambda one: (one["schedule"] != Schedule.DUALPIPE) | (one["pipeline"] % 2 == 0),
        "DualPipe runs two copies of the network towards each other, and {pipeline} stages do not pair off.",
    )
    for schedule, name in enumerate(SCHEDULE_NAMES):
        if schedule >= Schedule.ZB_V and schedule != Schedule.DUALPIPE:
            yield _rule(
                "interleave",
                "schedule interleave",
                lambda one, schedule=schedule: (one["schedule"] != schedule) | (one["interleave"] == 2),  # type: ignore[misc]  # bound now; the legs of a V
                f"the stages of {name} turn at the last device: interleave is 2, not {{interleave}}.",
            )
        if name != "1f1b" and (least := microbatches_a_stage(name, program)):
            is_dual = schedule == Schedule.DUALPIPE
            yield LayoutRule(
                key="schedule",
                names=("data", "microbatch", "pipeline", "schedule"),
                holds=lambda one, schedule=schedule, least=least, is_dual=is_dual: (  # type: ignore[misc]  # bound now
                    (one["schedule"] != schedule)
                    | ((number_of(one) >= least * one["pipeline"]) & ((number_of(one) % 2 == 0) | (not is_dual)))
                ),
                words=lambda one, name=name, least=least, is_dual=is_dual: (  # type: ignore[misc]  # bound now
                    f"{name} fills both ways of {one['pipeline']} stages with {least * one['pipeline']} micro-batches "
                    f"or more{', in pairs' * is_dual}, and a replica has {number_of(one)}."
                ),
            )
    if least := microbatches_a_stage("1f1b", program):
        yield LayoutRule(
            key="schedule",
            names=("data", "microbatch", "pipeline", "schedule", "interleave"),
            holds=lambda one, least=least: (  # type: ignore[misc]  # bound now
                (one["schedule"] != Schedule.ONE_F_ONE_B)
                | (one["pipeline"] == 1)
                | (one["interleave"] > 1)
                | (number_of(one) >= least * one["pipeline"])
            ),
            words=lambda one: (
                f"1f1b of {program} needs a micro-batch for each of {one['pipeline']} stages, and a replica has "
                f"{number_of(one)}: gpipe takes fewer."
            ),
        )
    yield _rule(
        "interleave",
        "pipeline interleave",
        lambda one: (one["interleave"] == 1) | (one["pipeline"] > 1),
        "{interleave} chunks on a device are interleaved in a pipeline, and there is one stage.",
    )
    yield _rule(
        "interleave",
        "schedule interleave",
        lambda one: (one["interleave"] == 1) | (one["schedule"] == Schedule.ONE_F_ONE_B) | _is_folded(one),
        "{interleave} chunks on a device go with the schedule 1f1b, or with one that turns at the last device.",
    )
    yield LayoutRule(
        key="interleave",
        names=("data", "microbatch", "pipeline", "schedule", "interleave"),
        holds=lambda one: (one["interleave"] == 1) | _is_folded(one) | (number_of(one) % one["pipeline"] == 0),
        words=lambda one: (
            f"interleaved chunks need a number of micro-batches that is a multiple of the stages, and "
            f"{number_of(one)} is none of {one['pipeline']}."
        ),
    )
    yield _rule(
        "offload_optimizer",
        "zero offload_optimizer",
        lambda one: (one["zero"] < _SHARDS_WEIGHTS) | (one["offload_optimizer"] == 0),
        "an optimiser on the host goes with ZeRO 0 and 1.",
    )
    yield _rule(
        "offload_percent",
        "offload_optimizer offload_percent",
        lambda one: (one["offload_percent"] == _ALL_PERCENT) | (one["offload_optimizer"] == 1),
        "no optimiser is on the host, and {offload_percent} percent of its state should be.",
    )
    yield _rule(
        "offload_percent",
        "offload_percent",
        lambda one: one["offload_percent"] <= _ALL_PERCENT,
        "{offload_percent} percent are more than all.",
    )


def most_recomputed(transformer: Transformer, one: Mapping[str, Ints | int]) -> Ints | int:
    """Return the layers of the fullest virtual stage, of which some may be computed again."""
    return -(-transformer.num_layers // (one["pipeline"] * one["interleave"]))


def _has_modules(key: str, lacking: Mapping[int, str]) -> LayoutRule:
    """Return the rule that layers have the modules of a set; ``lacking``: by its code, what no layer has, in words."""
    names = LAYOUT[key].names
    return LayoutRule(
        key=key,
        names=(key,),
        holds=lambda one: ~np.isin(one[key], list(lacking)),
        words=lambda one: (
            f"no layer of the network has {lacking.get(one[key], '')}, which '{names[one[key]]}' asks for."
        ),
    )


def module_rule(transformer: Transformer) -> LayoutRule:
    """Return the rule that layers have the modules that are computed again; norms in a matrix's kernel are none."""
    lacking = {number: words for number in range(len(MODULE_SETS)) if (words := absent_words(transformer, number))}
    return _has_modules("recompute_modules", {code: f"{one} as a module of its own" for code, one in lacking.items()})


def _recompute_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield what recomputation by module, and of some layers only, asks for.

    Megatron-Core 0.16, ``megatron/core/transformer/transformer_config.py``, ``__post_init__``.
    """
    yield _rule(
        "recompute_modules",
        "recompute recompute_modules",
        lambda one: (one["recompute_modules"] == 0) | (one["recompute"] == Recompute.SELECTIVE),
        "modules are computed again by themselves with recompute: selective only.",
    )
    yield module_rule(transformer)
    yield _rule(
        "recompute_layers",
        "recompute recompute_layers",
        lambda one: (one["recompute_layers"] == 0) | (one["recompute"] == Recompute.FULL),
        "layers are counted with recompute: full only, and {recompute_layers} are asked for.",
    )
    yield _rule(
        "recompute_layers",
        "pipeline interleave recompute_layers",
        lambda one: one["recompute_layers"] <= most_recomputed(transformer, one),
        f"{transformer.num_layers} layers over {{pipeline}} stages x {{interleave}} chunks are fewer than "
        f"{{recompute_layers}} each.",
    )


def _activation_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield what activations in host memory ask for (``transformer_config.py`` of Megatron-Core 0.16)."""

    def is_kept(one: Mapping[str, Any]) -> Any:
        return one["offload_layers"] == 0

    number = transformer.num_layers
    yield _rule(
        "offload_layers",
        "offload_layers",
        lambda one: is_kept(one) | (one["offload_layers"] < number),
        f"activations of fewer layers than the network's {number} may wait in host memory, not {{offload_layers}}.",
    )
    yield _rule(
        "offload_layers",
        "pipeline offload_layers",
        lambda one: is_kept(one) | (one["pipeline"] == 1),
        "activations wait in host memory without a pipeline only, and there are {pipeline} stages.",
    )
    yield _rule(
        "offload_layers",
        "recompute offload_layers",
        lambda one: is_kept(one) | (one["recompute"] == Recompute.NONE),
        "activations that wait in host memory are not computed again: it goes with recompute: none.",
    )


def _module_offload_rules(transformer: Transformer) -> Iterator[LayoutRule]:
    """Yield what inputs of modules in host memory ask for.

    ``transformer_config.py`` and ``transformer_layer.py`` of Megatron-Core 0.16.1: whole layers that are computed again
    keep their inputs alone, which no module has; an attention core that is computed again is not inside the copies.
    """

    def are_apart(away: Set[str], again: str) -> Callable[[Mapping[str, Any]], Any]:
        copied = [number for number, each in enumerate(OFFLOAD_SETS) if away & {*each}]
        sets = [number for number, each in enumerate(MODULE_SETS) if again in each]

        def holds(one: Mapping[str, Any]) -> Any:
            is_again = (one["recompute"] == Recompute.SELECTIVE) & np.isin(one["recompute_modules"], sets)
            return ~(is_again & np.isin(one["offload_modules"], copied))

        return holds

    lacking = {
        number: words for number in range(1, len(OFFLOAD_SETS)) if (words := absent_modules_words(transformer, number))
    }
    alone = [number for number, one in enumerate(OFFLOAD_SETS) if "attn_proj" in one and "core_attn" not in one]
    yield _has_modules("offload_modules", {code: f"an input of {words} by itself" for code, words in lacking.items()})
    yield _rule(
        "offload_modules",
        "offload_modules",
        lambda one: ~np.isin(one["offload_modules"], alone),
        "the input of attn_proj is what core_attn gives, whose backward pass reads it: list core_attn, too.",
    )
    yield _rule(
        "offload_modules",
        "offload_layers offload_modules",
        lambda one: (one["offload_modules"] == 0) | (one["offload_layers"] == 0),
        "activations wait on the host by layers or by modules: offload_layers and offload_modules do not go together.",
    )
    yield _rule(
        "offload_modules",
        "recompute offload_modules",
        lambda one: (one["offload_modules"] == 0) | (one["recompute"] != Recompute.FULL),
        "layers that are computed again keep no inputs of modules: offload_modules goes with recompute: none or "
        "selective.",
    )
    yield _rule(
        "offload_modules",
        "recompute recompute_modules offload_modules",
        are_apart({"core_attn"}, "core_attn"),
        "an attention core that is computed again is not copied to the host: leave core_attn out of one of both.",
    )
    yield _rule(
        "offload_modules",
        "recompute recompute_modules offload_modules",
        are_apart({"expert_fc1", "moe_act"}, "moe"),
        "a part of experts that is computed again keeps no inputs of expert_fc1 and moe_act for the host.",
    )


def _zero_rules(program: str) -> Iterator[LayoutRule]:
    """Yield which stages of ZeRO a program has beside a pipeline: a sentence for each.

    Megatron-Core's distributed optimiser, DeepSpeed's engine for pipelines and Nanotron: ZeRO 1. torchtitan shards over
    the data ranks of each stage (``fsdp_reshard_after_forward``): by default what is gathered stays for the step, which
    is planned as ZeRO 1, as are gradients that are held whole until the last micro-batch; or it is gathered anew for
    every micro-batch, ZeRO 3 (``distributed/fsdp.py``, ``get_fsdp_reshard_after_forward_policy``), which spares no
    memory there (``_held_zero`` of :mod:`planner.models.memory`).
    """
    has_whole = PROGRAMS[program].gathers_in_stages
    words = "ZeRO {zero} gathers and reduces anew for every micro-batch of each of {pipeline} stages, which " + (
        f"{program} does with ZeRO 3 only: ZeRO 1 is what keeps weights and gradients over them."
        if has_whole
        else "DeepSpeed and FSDP refuse with a pipeline, as does Megatron-Core's distributed optimiser."
    )
    yield _rule(
        "zero",
        "pipeline zero",
        lambda one: (one["zero"] < _SHARDS_WEIGHTS) | (one["pipeline"] == 1) | (has_whole & (one["zero"] == 3)),
        words,
    )


def _shard_rules() -> Iterator[LayoutRule]:
    """Yield what sharding over a part of the data ranks asks for.

    Megatron-Core 0.16, ``initialize_model_parallel`` of ``megatron/core/parallel_state.py``; of FSDP the mesh of
    replicas x shards.
    """

    def is_all(one: Mapping[str, Any]) -> Any:
        return one["shard"] == 0

    yield _rule(
        "shard",
        "data shard",
        lambda one: is_all(one) | (one["data"] % np.maximum(one["shard"], 1) == 0),
        "{data} data ranks do not divide into shards over {shard}.",
    )
    yield _rule(
        "shard",
        "zero shard",
        lambda one: is_all(one) | (one["zero"] > 0),
        "ZeRO 0 shards nothing, and shards over {shard} data ranks are asked for.",
    )
    yield _rule(
        "shard",
        "context shard",
        lambda one: is_all(one) | (one["context"] * one["shard"] > 1),
        "one rank has nobody to share with; ZeRO 0 is what copies all.",
    )
    yield _rule(
        "shard",
        "tensor context expert expert_tensor shard",
        lambda one: is_all(one) | np.asarray(is_spread(one, one["context"] * one["shard"])),
        "the expert degree {expert}, of {expert_tensor} devices each, does not divide the {tensor} tensor x {context} "
        "context x {shard} data ranks that share a copy of all states.",
    )


OVERLAPS = {"overlap_data": "data-parallel", "overlap_tensor": "tensor-parallel", "overlap_expert": "expert-parallel"}


RECOMPUTED = {
    "recompute_modules": "no modules again by themselves: it has recompute alone",
    "recompute_layers": "all layers again, or none",
}


def program_rules(program: str) -> tuple[LayoutRule, ...]:
    """Return what a layout asks of the program that trains: overlaps and a context method that it has."""
    methods = PROGRAMS[program].context_methods
    names = ", ".join(LAYOUT["context_method"].names[one] for one in methods)
    has = _rule(
        "context_method",
        "context_method",
        lambda one: np.isin(one["context_method"], methods),
        f"{program} has no such method of context parallelism: it has {names}.",
    )
    return (
        has,
        *_overlap_rules(program),
    )


def _overlap_rules(program: str) -> tuple[LayoutRule, ...]:
    """Return the same of overlaps, of what it may compute again, and of what ZeRO may share out."""
    has = PROGRAMS[program]
    words = {
        name: f"{program} has no {name}: its {what} communication is never beside computing."
        for name, what in OVERLAPS.items()
        if name not in has.has
    }
    words |= (
        {} if has.recomputes_modules else {name: f"{program} computes {what}." for name, what in RECOMPUTED.items()}
    )
    words |= (
        {}
        if has.offloads_activations
        else dict.fromkeys(AWAY, f"{program} keeps activations on the device, all of them.")
    )
    words |= {} if has.shards_partly else {"shard": f"{program} shards over all data ranks, or over none."}
    found = tuple(
        _rule(name, name, lambda one, name=name: one[name] == 0, text)  # type: ignore[misc]  # bound now
        for name, text in words.items()
    )
    if program in CORES:
        return found
    all_of_it = f"{program} has all of the optimiser's state on the host, or nothing."
    return (
        *found,
        _rule("offload_percent", "offload_percent", lambda one: one["offload_percent"] == _ALL_PERCENT, all_of_it),
    )


def graph_rules(has_graphs: bool, transformer: Transformer) -> tuple[LayoutRule, ...]:
    """Return what CUDA graphs forbid: see :mod:`planner.models.offload`."""
    if not has_graphs:
        return ()
    words = "no CUDA graph holds copies of activations to the host: it goes with calibration.cuda_graphs: false"
    beside = modules_beside_graphs(transformer)
    sets = [number for number, one in enumerate(OFFLOAD_SETS) if {*one} <= {*beside}]
    some = f", but for {' and '.join(beside)}, which are not captured" if beside else ""
    return (
        _rule("offload_layers", "offload_layers", lambda one: one["offload_layers"] == 0, f"{words}."),
        _rule(
            "offload_modules", "offload_modules", lambda one: np.isin(one["offload_modules"], sets), f"{words}{some}."
        ),
    )


# Modules that are not computed again where numbers in eight bits have scales of earlier steps: Megatron-Core 0.16,
# ``transformer_config.py``, ``__post_init__``.
_NOT_WITH_DELAYED = frozenset({"moe_act", "layernorm"})


def barred_modules(training: Training) -> frozenset[str]:
    """Return the modules that are not computed again by themselves, as the network is trained."""
    low = training.low
    return _NOT_WITH_DELAYED if low is not None and (low.name, low.recipe) == ("fp8", "delayed") else frozenset()


def training_rules(training: Training) -> tuple[LayoutRule, ...]:
    """Return what a layout asks of how the network is trained: scales of short numbers, and whole matrices."""
    return (*_module_rules(training), *_matrix_rules(training))


def _module_rules(training: Training) -> Iterator[LayoutRule]:
    """Yield which modules the type of products forbids to compute again."""
    if not (barred := barred_modules(training)):
        return
    sets = [number for number, one in enumerate(MODULE_SETS) if barred & {*one}]
    yield _rule(
        "recompute_modules",
        "recompute_modules",
        lambda one: ~np.isin(one["recompute_modules"], sets),
        f"{' and '.join(sorted(barred))} are not computed again with fp8_recipe: delayed, whose scales have moved on "
        f"by then: it goes with fp8_recipe: current or blockwise.",
    )


def _matrix_rules(training: Training) -> tuple[LayoutRule, ...]:
    """Return what an optimiser that needs whole matrices asks for."""
    if not OPTIMIZERS[training.optimizer].needs_matrices:
        return ()
    whole = f"{training.optimizer} steps whole matrices"
    return (
        _rule(
            "zero",
            "zero",
            lambda one: one["zero"] < _SHARDS_WEIGHTS,
            f"{whole}, and ZeRO {{zero}} cuts them: it goes with ZeRO 0 and 1.",
        ),
        _rule(
            "offload_optimizer",
            "offload_optimizer",
            lambda one: one["offload_optimizer"] == 0,
            f"{whole} by products of matrices, which a host takes too long for.",
        ),
    )


def launch_rules(program: str, transformer: Transformer) -> tuple[LayoutRule, ...]:
    """Return the rules of layouts that a program can start; a pinned order of ranks is not asked for its reasons.

    With data ranks outside of a pipeline Megatron-Core asserts that experts are copied as often as all else, where a
    sequence's ranks count as copies of experts (``megatron/core/parallel_state.py``, core 0.16.1,
    ``initialize_model_parallel``); it does so without experts, too, which then are cut as all else is.
    """
    if program not in CORES:
        return ()
    has_pipeline_last = np.array([order[-1] == "pipeline" for order in ORDERS])
    cut = "expert_tensor" if transformer.experts is not None else "tensor"
    return (
        _rule(
            "order",
            "tensor context pipeline expert expert_tensor order",
            lambda one: (
                has_pipeline_last[one["order"]]
                | (one["pipeline"] == 1)
                | (one["expert"] * one[cut] == one["context"] * one["tensor"])
            ),
            "Megatron-Core makes groups of a pipeline inside of data ranks only if experts and the devices that share "
            f"each, {{expert}} x {{{cut}}}, are as many as context x tensor ranks, {{context}} x {{tensor}}.",
        ),
    )


def device_rules(kind: str) -> tuple[LayoutRule, ...]:
    """Return what a layout asks of a kind of devices: what MaxText, which trains on TPUs, has no option for."""
    if kind != "tpu":
        return ()
    words = "MaxText, which trains on TPUs, runs the experts' exchange beside no other micro-batch."
    return (_rule("overlap_expert", "overlap_expert", lambda one: one["overlap_expert"] == 0, words),)


def maxtext_rules(transformer: Transformer, batch: int, slice_devices: int) -> Iterator[LayoutRule]:
    """Yield which even layouts of a batch MaxText runs as they are planned, on slices of so many TPUs.

    A decision that is pinned is not asked for its reasons. Why: :mod:`planner.exporters.maxtext`, which says of others
    what it changes, or why it refuses them.
    """
    plain = {
        "order": f"MaxText numbers ranks {ORDER_NAMES[0]}, from the inside outwards.",
        "recompute_modules": "MaxText computes no modules again by themselves.",
        "recompute_layers": "MaxText computes all layers again, or none.",
        **dict.fromkeys(AWAY, "MaxText keeps activations on the device."),
    }
    for name, words in plain.items():
        yield _rule(name, name, lambda one, name=name: one[name] == 0, words)  # type: ignore[misc]  # bound now
    yield _rule(
        "context_method",
        "context context_method",
        lambda one: (one["context"] == 1) | (one["context_method"] == ContextMethod.ALL_GATHER),
        "MaxText's context ranks gather keys and values on TPUs.",
    )
    yield _rule(
        "zero",
        "data zero",
        lambda one: (one["data"] == 1) | (one["zero"] != _SHARDS_WEIGHTS),
        "where MaxText shares gradients, it shares weights, too (ZeRO 3).",
    )
    if transformer.experts is not None:
        yield _rule(
            "expert_tensor",
            "tensor expert_tensor",
            lambda one: one["expert_tensor"] == one["tensor"],
            "MaxText cuts experts by the tensor degree, as all else.",
        )
        yield _rule(
            "expert",
            "data expert",
            lambda one: one["data"] % one["expert"] == 0,
            "MaxText spreads experts over data ranks, and {data} do not divide by {expert}.",
        )
        yield _rule(
            "shard",
            "expert shard",
            lambda one: (one["shard"] <= 1) | (one["shard"] % one["expert"] == 0),
            "MaxText spreads experts over ranks that share weights, and {shard} do not divide by {expert}.",
        )
    degrees = ("tensor", "context", "pipeline", "data")
    # Each axis takes what it can of the devices that are left of a slice; all are taken just where they divide.
    yield _rule(
        "data",
        " ".join(degrees),
        lambda one: np.asarray(
            ((number := prod(one[name] for name in degrees)) <= slice_devices) | (number % slice_devices == 0)
        ),
        f"MaxText's mesh fills slices of {slice_devices} devices.",
    )
    yield _rule(
        "schedule",
        "pipeline schedule",
        lambda one: (one["pipeline"] == 1) | (one["schedule"] == Schedule.GPIPE),
        "MaxText runs the forward passes of all micro-batches before the first backward one (GPipe).",
    )
    is_whole = transformer.num_mtp_layers == 0 and (
        transformer.latent is None or transformer.experts is None or transformer.experts.num_dense_first == 0
    )
    layers = transformer.num_layers
    yield _rule(
        "pipeline",
        "pipeline",
        lambda one: (one["pipeline"] == 1) | (is_whole & (layers % one["pipeline"] == 0)),
        "MaxText's stages are of layers of one kind, as many in each.",
    )
    yield _rule(
        "microbatch",
        "data microbatch pipeline",
        lambda one: (batch // (one["data"] * one["microbatch"])) % one["pipeline"] == 0,
        "MaxText's micro-batches are a multiple of the {pipeline} stages.",
    )


@lru_cache(maxsize=64)
def unlike_rules(transformer: Transformer) -> tuple[LayoutRule, ...]:
    """Return rules that keep one of layouts which differ in name only: what a degree of 1 leaves without a meaning.

    The last decision of each has none. Of the orders that rank the degrees above 1 alike the first is kept.
    """
    first = np.zeros((1 << len(DEGREES), len(ORDERS)), dtype=bool)  # by which degrees are more than 1, and by order
    for pattern, kept in enumerate(first):
        seen: set[tuple[str, ...]] = set()
        for index, order in enumerate(ORDERS):
            ranked = tuple(name for name in order if pattern >> DEGREES.index(name) & 1)
            kept[index] = ranked not in seen
            seen.add(ranked)

    def is_first(one: Columns) -> Bools:
        pattern = sum((one[name] > 1) * (1 << place) for place, name in enumerate(DEGREES))
        return np.asarray(first[pattern, one["order"]])

    def is_shared(one: Columns) -> Bools:
        return np.asarray(one["context"] * one["data"] > 1)

    def is_some(one: Columns) -> Bools:
        return np.asarray(
            (one["recompute_layers"] == 0) | (one["recompute_layers"] < most_recomputed(transformer, one))
        )

    def is_plain(one: Columns) -> Bools:
        return np.asarray((one["pipeline"] > 1) | (one["schedule"] == Schedule.ONE_F_ONE_B))

    words = "this decision has no meaning here."
    return (
        _rule("recompute_layers", "pipeline interleave recompute_layers", is_some, words),
        _rule("shard", "data shard", lambda one: (one["shard"] == 0) | (one["shard"] < one["data"]), words),
        _rule("schedule", "pipeline schedule", is_plain, words),
        _rule(
            "overlap_tensor",
            "tensor overlap_tensor",
            lambda one: (one["tensor"] > 1) | (one["overlap_tensor"] == 0),
            words,
        ),
        _rule("zero", "context data zero", lambda one: is_shared(one) | (one["zero"] == 0), words),
        _rule(
            "overlap_data",
            "context data overlap_data",
            lambda one: is_shared(one) | (one["overlap_data"] == 0),
            words,
        ),
        _rule("order", f"{' '.join(DEGREES)} order", is_first, words),
        _rule(
            "context_method",
            "context context_method",
            lambda one: (one["context"] > 1) | (one["context_method"] == ContextMethod.RING),
            words,
        ),
    )


def broken_rule(rules: Sequence[LayoutRule], codes: Mapping[str, int]) -> LayoutRule | None:
    """Return the first rule that a layout breaks, or None."""
    columns = {name: np.array([value]) for name, value in codes.items()}
    return next((one for one in rules if not one.holds(columns)[0]), None)


def nearest(rules: Sequence[LayoutRule], broken: LayoutRule, codes: Mapping[str, int], name: str) -> list[int]:
    """Return the nearest values of one decision, one below and one above, that mend a layout; of names all that do.

    Values that keep all rules are preferred; if there are none, those that keep the broken one.
    """
    given, known = codes[name], len(LAYOUT[name].names)  # of names, all
    first = 0 if name == "zero" or known else 1
    tried = np.arange(first, known or min(4 * given + 4096, _MOST_TRIED), dtype=np.int64)
    columns = {key: np.full(len(tried), value) for key, value in codes.items()} | {name: tried}
    alone = broken.holds(columns)
    every = np.logical_and.reduce([one.holds(columns) for one in rules])
    values = tried[every if every.any() else alone]
    below, above = values[values < given], values[values > given]
    found: list[int] = values.tolist() if known else [*below[-1:].tolist(), *above[:1].tolist()]
    return found


# -- what a block ``configuration.hybrid`` means by the keys that it leaves out ----------------------------------------
#
# What ``plan`` takes by default. A key is taken as a pin asks; else it is on where the program has it (PROGRAMS), the
# rules of the search give it a meaning and the question does not exclude it: an overlap does not make a step longer
# (that of experts keeps one more micro-batch), and a step of the optimiser that data ranks share is shorter. The
# degrees, the schedule, the micro-batch, recomputation and where the optimiser runs are what is asked about: left out
# they are their rows' defaults.

_OPEN = [name for name, row in LAYOUT.items() if row.default is None]  # an overlap comes after what it needs


def completed(problem: Problem, given: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Return the decisions of a block, of a question whose network is a transformer."""
    transformer = problem.dnn.transformer
    assert transformer is not None, "asked by why_not"
    found = {name: given[name] for name in LAYOUT}
    rules = rules_of(transformer, batch, program=problem.calibration.program)
    kinds = {one.device.kind for one in problem.cluster.machine_groups if given["machines"] in (None, one.name)}
    rules = (*rules, *training_rules(problem.training), *unlike_rules(transformer))
    rules += tuple(one for kind in sorted(kinds) for one in device_rules(kind))
    program = PROGRAMS[problem.calibration.program]
    has = program.has
    if found["expert_tensor"] is None:
        is_cut = transformer.experts is not None and program.cuts_experts
        if is_cut and not is_spread({**found, "expert_tensor": found["tensor"]}, found["context"] * found["data"]):
            is_cut = False  # whole ones spread over more ranks
        found["expert_tensor"] = problem.fixed.get(LAYOUT["expert_tensor"].key, found["tensor"] if is_cut else 1)
    for name in _OPEN:
        if found[name] is not None:
            continue
        row = LAYOUT[name]
        # On, if no rule that leads to it forbids that beside what is decided already.
        codes = {key: LAYOUT[key].code(value) for key, value in found.items() if value is not None} | {name: 1}
        mine = [one for one in rules if one.key == name and codes.keys() >= set(one.names)]
        is_open = name not in OF_CUTS or not given.get("replicas")
        is_on = (
            is_open and name in has and 1 not in problem.excluded.get(row.key, ()) and broken_rule(mine, codes) is None
        )
        found[name] = row.decoded(int(problem.fixed.get(row.key, is_on)))
    return found


def left_out_words(problem: Problem, given: Mapping[str, object], block: Mapping[str, Any]) -> list[str]:
    """Return a line for each key that was left out and is on: ``overlap_data: on, as megatron-core has it``.

    ``block``: what the layout is.
    """
    return [
        f"{key}: {'on' if block[key] is True else block[key]}, as {problem.calibration.program} has it"
        for key in _OPEN
        if given[key] is None and int(block[key]) > LAYOUT[key].is_count
    ]
