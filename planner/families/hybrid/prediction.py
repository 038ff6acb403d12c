"""What a layout costs, in figures and in words: a prediction with its breakdown, what binds, and how far it is off."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.families.hybrid.configuration import AWAY, OVERLAPS, HybridConfiguration
from planner.families.hybrid.cost import OFFLOAD, GroupCost, HybridCost
from planner.families.hybrid.launch import (
    Launch,
    all_options,
    launch_lines,
    launch_words,
    low_precision_options,
    other_program,
)
from planner.families.hybrid.launch_network import not_expressed
from planner.families.hybrid.timeline import Pipeline, Tail, draw
from planner.models.compute import UNCALIBRATED
from planner.models.layouts import Ints, Layouts, Schedule, folded_back, layers_by_kind
from planner.models.memory import TERMS
from planner.models.operators import flop_per_sample
from planner.models.parameters import trained_stage_parameters
from planner.models.programs import MEGATRON_CORE, PROGRAMS, token_backend
from planner.models.transformer_interval import LAYER_PARTS, kind_times
from planner.models.transformer_step import Step
from planner.models.transformer_time import PARTS, filling_s, filling_transfers_s
from planner.plan import Prediction
from planner.problem import Problem
from planner.timeline import Timeline, repeated
from planner.transformer import Transformer
from planner.units import Dimension, format_human

NOT_MODELLED = (
    "convergence and accuracy: batch and layout do not change what is learned, but for rounding",
    "stragglers, failures and checkpoints",
    "experts that get unlike numbers of tokens, beyond calibration.expert_imbalance",
    "slower kernels where memory is nearly full, and memory that lies in pieces",
    "host memory, where the optimiser's state lies there",
)
_COMMUNICATION = ("tensor", "expert", "context", "pipeline", "data")
_MOST_STAGES = 8  # whose free memory is printed one by one
_MEASURED = (
    "layouts over several kinds are held against 12 measured steps of one program: ranks agree to 0.9 and times to a "
    "tenth, once its launch floor and its slower devices' shares are fitted to other rows (docs/hybrid_mixed.md)"
)
# What of a prediction lies outside of what was measured, by name; and the error that was measured nearest to it.
#
# A prediction has the band of a family of measurements where the family trained with the same program and the question
# lies within all of the family's ranges; of several such the one of the fewest devices. Else it has the wider one of
# families that a fit did not see: of the device, or of any where too few were measured on it, with words for what lies
# outside; on a device without measurements that of devices that a fit did not see.
_CONDITIONS = {  # of the families that have a band
    "bigscience-176b-sweep": "GPT of about 176 billion parameters on A100s, Megatron-DeepSpeed in bf16",
    "recipes-h100-15b": "NVIDIA's recipes of Nemotron 15B on 16 to 2,048 H100s, Megatron-Core",
    "recipes-h100-405b": "NVIDIA's recipes of Llama 3.1 405B, also cut, on 32 to 2,304 H100s, Megatron-Core",
    "recipes-h100-8b": "NVIDIA's recipes of Llama 3.1 8B on 8 to 128 H100s, Megatron-Core",
    "recipes-h100-grok": "NVIDIA's recipes of Grok-1, cut, on 8 to 128 H100s, Megatron-Core",
    "llm-foundry": "MPT of 1.3 to 13 billion parameters on 8 to 512 H100s, fully sharded data parallelism",
    "llm-foundry-a100": "MPT of 0.1 to 65 billion parameters on 8 to 64 A100s, fully sharded data parallelism",
    "vtrain-single": "GPT of 0.2 to 1.3 billion parameters on 4 to 8 A100s, Megatron-DeepSpeed",
}
_UNSEEN = {"all": "families measured on any device", "unmeasured": "devices"}  # of bands, by where they are from
_LEFT_OUT = ", each left out whole of the fit that predicts it"
_VALIDATED = 0.75  # of networks that others' band covers, at least
# On which devices steps of a type were measured.
LOW_MEASURED: Mapping[str, frozenset[str]] = {
    "fp8": frozenset({"h100-sxm", "b200-sxm", "gb200", "gb300"}),
    "mxfp8": frozenset({"b200-sxm", "b300-sxm", "gb200", "gb300"}),
    "nvfp4": frozenset({"b300-sxm"}),
}
_FILLED_WORDS = 1024  # programs fill up a vocabulary, Megatron-LM to 128 words a rank: alike at a tensor degree of 8


@dataclass(frozen=True, kw_only=True, eq=False)
class _Priced(ABC):
    """A configuration with its cost; what differs by the placement."""

    cost: HybridCost
    chosen: HybridConfiguration

    @classmethod
    def of(cls, problem: Problem, chosen: HybridConfiguration) -> "_Priced":
        """Return a configuration priced on its groups."""
        cost = HybridCost.of(problem, chosen)
        return (_PricedEven if cost.is_even else _PricedCut)(cost=cost, chosen=chosen)

    @property
    def columns(self) -> dict[str, Ints]:
        """Its decisions as columns of one layout."""
        return {name: np.array([code]) for name, code in self.chosen.codes().items()}

    @abstractmethod
    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the seconds of a step by part, and those of communication by what for."""

    @abstractmethod
    def stages(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return a row for each stage of each class of replicas, and the bytes where least memory is free, by term."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """Return what of the details only this placement has."""

    @abstractmethod
    def pipelines(self, prediction: Prediction) -> Iterator[Pipeline]:
        """Yield the pipelines of a timeline, one for each class of replicas."""

    @property
    def launched(self) -> Launch:
        """What a launcher is told beside network and layout."""
        first = self.cost.first
        return Launch(
            dtype=first.problem.training.dtype,
            devices_per_machine=first.group.host_size,
            program=first.program,
            gradients=first.problem.calibration.gradients,
            optimizer=first.problem.training.optimizer,
            low=low_precision_options(
                first.problem.training.low, has_cuda_graphs=first.has_cuda_graphs, network=self.cost.transformer
            ),
            backend=token_backend(first.group.device.name, first.program, self.chosen.tensor),
            domain_size=first.group.devices_per_machine,
            added_up=self.added_up,
        )

    @property
    def added_up(self) -> str:
        """See :func:`added_up`."""
        if not self.cost.problem.cluster.reduces:
            return ""
        zero, software = self.chosen.zero, self.cost.first.software
        is_whole = zero == 0 or (zero == 1 and not software.shards_gradients)
        name = "replicas" if is_whole else "copies" if self.chosen.num_copies > 1 else ""
        if not name:
            return ""
        groups = [one.groups[name] for one in self.cost.group_seconds(self.columns)]
        is_so = any((one.reduces & (one.units > 2)).any() for one in groups)  # of two units a ring does as well
        return {"copies": "dp_replica", "replicas": "dp"}[name] if is_so else ""

    @property
    def has_launch(self) -> bool:
        """Whether one command starts the layout."""
        is_one_size = len({one.group.devices_per_machine for one in self.cost.groups}) == 1
        return not (self.cost.has_replicas or not_expressed(self.cost.transformer)) and is_one_size


def added_up(problem: Problem, chosen: HybridConfiguration) -> str:
    """Return whose gradients switches of the network add up (SHARP), as ``--sharp-enabled-group`` has it; "": nobody's.

    All-reduces alone: of all replicas (``dp``), or of the copies of what ZeRO shares out (``dp_replica``), on three
    machines or more. Megatron-Core clears ``NCCL_COLLNET_ENABLE`` but for that group, which needs the option
    (``initialize_model_parallel`` of ``megatron/core/parallel_state.py``, 0.16).
    """
    return _Priced.of(problem, chosen).added_up


class _PricedEven(_Priced):
    """An even cut on one group, or a given one with chunks, or in another schedule."""

    @cached_property
    def _layout(self) -> Layouts:
        """The layout."""
        return self.cost.layouts(self.columns)

    @cached_property
    def _interval(self) -> Mapping[str, Floats]:
        """Seconds of a micro-batch."""
        return self.cost.first.interval(self._layout)

    @cached_property
    def _chunk_layers(self) -> Ints:
        """Layers of each virtual stage by kind, shape (kinds, v, p)."""
        chunks = np.array(self.chosen.chunk_layers(self.cost.transformer.num_layers))
        kinds = layers_by_kind(self.cost.transformer, chunks)
        found: Ints = self._placed(kinds)
        return found

    def _placed(self, stages: Any) -> Any:
        """Return what virtual stages have by chunk and device, of shape (..., v, p)."""
        chosen = self.chosen
        if not chosen.is_folded:
            return stages.reshape(*stages.shape[:-1], chosen.interleave, chosen.pipeline)
        if chosen.schedule == "dualpipe":  # stages 0 to p - 1 of one copy, and of the other
            return np.stack([stages, stages[..., ::-1]], axis=-2)
        return folded_back(stages.reshape(*stages.shape[:-1], 2, chosen.pipeline))

    @property
    def _given(self) -> tuple[int, ...] | None:
        """Layers of each virtual stage, where they are not dealt out evenly."""
        return None if self.chosen.is_even else self.chosen.chunk_layers(self.cost.transformer.num_layers)

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        """See the base; communication as it would be beside no computing."""
        found = self.cost.first.parts(self._layout, self._given)
        stall_s = float(self.cost.stalls_s(self.columns, found["total"])[0])
        alone = replace(self._layout, **dict.fromkeys(OVERLAPS, np.array([False])))
        exposed = self.cost.first.parts(alone, self._given)
        names = (*PARTS, *((OFFLOAD,) if OFFLOAD in found else ()))
        parts = {name: float(found[name][0]) for name in names} | {"input_stall": stall_s}
        return parts, {name: float(exposed[name][0]) for name in _COMMUNICATION}

    def stages(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """See the base; seconds of each virtual stage, sending left out."""
        held, limit = self.cost.first.stage_memory(self._layout, self._given), self.cost.first.memory_limit_bytes
        both_s, ahead_s = (one[:, :, None] for one in kind_times(self.cost.transformer, self._interval))
        forward, backward = ((self._chunk_layers * one).sum(axis=0) for one in (ahead_s, both_s - ahead_s))
        for at, name in ((0, "embedding"), (-1, "head")):
            is_end = np.zeros(self.chosen.num_chunks)
            is_end[at] = 1
            ahead, both = (float(self._interval[one][0]) for one in (f"{name}_forward", name))
            forward = forward + self._placed(is_end) * ahead
            backward = backward + self._placed(is_end) * (both - ahead)
        if self.chosen.schedule == "dualpipe":  # device i holds what device p - 1 - i does
            held = {name: np.concatenate([array, array[::-1]]) for name, array in held.items()}
        rows = [
            {
                "memory_bytes": float(total),
                "room_bytes": limit - float(total) if limit < inf else None,
                "terms_bytes": {name: float(held[name][index]) for name in TERMS},
                "forward_s": forward[:, index].tolist(),
                "backward_s": backward[:, index].tolist(),
            }
            for index, total in enumerate(held["total"])
        ]
        memory = self.cost.first.memory(self._layout, self._given)
        fullest = {name: float(array[0]) for name, array in memory.items()}
        return rows, {**fullest, "limit": limit}

    def figures(self) -> dict[str, Any]:
        transfer_s = float(self._interval["transfer"][0]) if self.chosen.pipeline > 1 else 0.0
        filling = filling_s(self.cost.transformer, self._layout, self._interval, self._given)
        return {
            "expert_imbalance": self.cost.first.expert_imbalance,
            "transfer_s": transfer_s,
            "filling_s": float(filling[0]),
            "hidden_transfer_s": float(self._interval["transfer_hidden"][0]),
            "filling_transfers_s": float(filling_transfers_s(self._layout, self._interval)[0]),
        }

    def pipelines(self, prediction: Prediction) -> Iterator[Pipeline]:
        cost, parts, rows = self.cost.first, prediction.breakdown_s, prediction.details["stages"]
        chunks, transfer_s = self._chunk_layers.shape[1], prediction.details["transfer_s"]
        shares = self._chunk_layers.sum(axis=1).T / list(cost.transformer.kind_counts.values())
        seconds = {name: (shares * self._interval[name][:, 0]).sum(axis=1) for name in (*LAYER_PARTS, "forward")}
        schedule = Schedule(int(self._layout.schedule[0]))
        # Of each chunk of each device, whatever layers it has.
        each = (self._interval["compute"] - self._interval["forward"])[:, 0] / list(
            cost.transformer.kind_counts.values()
        )
        apart_s = np.tensordot(each / 2, self._chunk_layers, axes=1).T * (schedule >= Schedule.ZB_H1)
        yield Pipeline(
            device=[cost.group.device.name] * len(rows),
            num_devices=self.chosen.tensor * self.chosen.context * self.chosen.data,
            rows=rows,
            layer_parts=[
                {name: float(seconds[name][index]) / chunks for name in LAYER_PARTS} for index in range(len(rows))
            ],
            computed_forward_s=(seconds["forward"] / chunks).tolist(),
            sends_s=(transfer_s, transfer_s),
            num_microbatches=self.chosen.num_microbatches,
            schedule=schedule,
            weights_s=apart_s.tolist(),
            end_s=prediction.iteration_time_s - parts["data"] - parts["optimizer"] - parts["input_stall"],
            filling_s=prediction.details["filling_s"],
            filling_transfers_s=prediction.details["filling_transfers_s"],
            tails=[Tail(parts["data"], parts["optimizer"], prediction.communication_s["data"])] * len(rows),
        )


class _PricedCut(_Priced):
    """Any cut on any groups."""

    @property
    def columns(self) -> dict[str, Ints]:
        """See the base; with the stages or replicas of each group."""
        chosen = self.chosen
        if chosen.replicas:
            parts = [one.data for one in chosen.replicas]
        else:
            parts = [sum(stage.machines == name for stage in chosen.stages) for name in self.cost.names]
        found = {name: np.array([code]) for name, code in chosen.codes().items()}
        return found | {name: np.array([part]) for name, part in zip(self.cost.part_names, parts, strict=True)}

    @cached_property
    def _numbers(self) -> Ints | None:
        """Micro-batches of one replica of each group."""
        rows = [[one.num_microbatches] for one in self.chosen.replicas]
        return np.array(rows) if rows else None

    @cached_property
    def _step(self) -> Step:
        """The step."""
        return self.cost.step(self.columns, np.array([[one.layers] for one in self.chosen.stages]), self._numbers)

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        """See the base: computing of the slowest stage of the last class; communication that nothing hides."""
        found = {name: float(array[0]) for name, array in self._step.parts().items()}
        stall_s = float(self.cost.stalls_s(self.columns, self._step.total_s, self._numbers)[0])
        parts = {name: found[name] for name in PARTS} | {"input_stall": stall_s}
        return parts, {name: found[name] for name in _COMMUNICATION}

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        """The rows of all stages, each with where it stands."""
        step, rows = self._step, []
        for one in step.classes:
            layouts = replace(self.cost.layouts(self.columns), num_microbatches=one.num_microbatches)
            held = self.cost.memory.stage_bytes(layouts, step.layers)
            (forward, backward), (down, up) = step.passes_s(one), step.sends_s(one)
            for stage, group in enumerate(one.groups[:, 0].tolist()):
                limit, total = float(self.cost.limits_bytes[group]), float(held["total"][stage, 0])
                rows.append(
                    {
                        "machines": self.cost.names[group],
                        "layers": int(step.layers[stage, 0]),
                        "memory_bytes": total,
                        "limit_bytes": limit,
                        "room_bytes": limit - total if limit < inf else None,
                        "terms_bytes": {name: float(held[name][stage, 0]) for name in TERMS},
                        "forward_s": float(forward[stage, 0] - down[stage, 0]),
                        "backward_s": float(backward[stage, 0] - up[stage, 0]),
                        "sent_forward_s": float(down[stage, 0]),
                        "sent_backward_s": float(up[stage, 0]),
                        "exchange_s": float(step.exposed_s[stage, 0]),
                        "optimizer_s": float(step.optimizer_s[stage, 0]),
                    }
                )
        return rows

    def stages(self) -> tuple[list[dict[str, Any]], dict[str, float]]:
        fullest = max(self._rows, key=lambda row: (row["memory_bytes"] / row["limit_bytes"], row["memory_bytes"]))
        held = {**fullest["terms_bytes"], "total": fullest["memory_bytes"], "limit": fullest["limit_bytes"]}
        return self._rows, held

    def figures(self) -> dict[str, Any]:
        return {"class_s": [float(seconds[0]) for seconds in self._step.class_steps_s]}

    def pipelines(self, prediction: Prediction) -> Iterator[Pipeline]:
        size, step = self.chosen.pipeline, self._step
        end_s = float(step.class_steps_s.max())
        for index, one in enumerate(step.classes):
            rows, on = self._rows[index * size : (index + 1) * size], one.groups[:, 0].tolist()
            seconds = [{**step.groups[group].layer, "forward": step.groups[group].computed_forward_s} for group in on]
            parts = [
                {name: float((one[:, 0] * step.kinds[:, stage, 0]).sum()) for name, one in row.items()}
                for stage, row in enumerate(seconds)
            ]
            data = self.chosen.replicas[index].data if self.chosen.replicas else self.chosen.data
            yield Pipeline(
                device=[self.cost.groups[group].group.device.name for group in on],
                num_devices=self.chosen.tensor * self.chosen.context * data,
                rows=rows,
                layer_parts=[{name: row[name] for name in LAYER_PARTS} for row in parts],
                computed_forward_s=[row["forward"] for row in parts],
                sends_s=None,
                num_microbatches=int(one.num_microbatches[0]),
                schedule=Schedule.ONE_F_ONE_B,
                where=f"{self.cost.names[on[0]]}: " if self.chosen.replicas else "",
                own_end_s=float(step.class_steps_s[index, 0]),
                end_s=end_s,
                tails=[Tail(row["exchange_s"], row["optimizer_s"], row["exchange_s"]) for row in rows],
            )


def predict(problem: Problem, configuration: HybridConfiguration) -> Prediction:
    """Return what a layout costs: seconds by part, and bytes of the device with least free memory.

    Parts are those of :mod:`planner.models.transformer_time`, as far as nothing hides them, and waiting for input.
    """
    priced = _Priced.of(problem, configuration)
    cost, batch, network = priced.cost, configuration.global_batch_size, priced.cost.transformer
    num_devices = configuration.num_devices
    (parts, communication), (rows, memory_bytes) = priced.parts(), priced.stages()
    iteration_s = sum(parts.values())
    samples, epochs = problem.training.dataset_samples, problem.training.epochs
    epoch_s = None if samples is None else iteration_s * samples / batch
    counts = list(zip(cost.groups, configuration.devices_of.values(), strict=True))
    peak = sum(count * one.rates.peak_flop_per_s for one, count in counts)
    return Prediction(
        iteration_time_s=iteration_s,
        epoch_time_s=epoch_s,
        training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
        breakdown_s=parts,
        communication_s=communication,
        scaling_factor=parts["compute"] / iteration_s,
        communication_to_computation=sum(communication.values()) / parts["compute"],
        memory_bytes=memory_bytes,
        relative_error=error_band(cost.first, configuration) if cost.is_even else None,
        details={
            "batch_per_device": batch / num_devices if batch % num_devices else batch // num_devices,
            "global_batch_size": batch,
            "num_devices": num_devices,
            "num_machines": sum(-(-count // one.group.devices_per_machine) for one, count in counts),
            "num_microbatches": configuration.num_microbatches,
            "staleness": 0,
            "software": cost.first.program,
            "bubble": parts["bubble"] / (iteration_s - parts["bubble"]),
            "tokens_per_s": batch * network.sequence_length / iteration_s,
            "flop_utilisation": batch * flop_per_sample(network).total_flop / iteration_s / peak,
            "is_calibrated": all(one.is_calibrated for one in cost.groups),
            **priced.figures(),
            "stages": rows,
            "options": all_options(network, configuration, priced.launched),
            "launch": list(launch_lines(network, configuration, priced.launched)) if priced.has_launch else [],
        },
    )


def free_bytes(problem: Problem, configuration: HybridConfiguration) -> float:
    """Return what is left of the memory of the fullest device; negative where it does not hold the layout."""
    rows, _ = _Priced.of(problem, configuration).stages()
    return min((float(row["room_bytes"]) for row in rows if row["room_bytes"] is not None), default=inf)


def _images_line(network: Transformer, encoder: Transformer) -> str:
    """Return what images are of a sample, and what the encoder is of the network's work."""
    number, tokens = network.num_images, network.num_image_tokens
    share = number * flop_per_sample(encoder).total_flop / flop_per_sample(network).total_flop
    return (
        f"{number:,} image{'s' * (number > 1)} a sample, {tokens:,} of its {network.sequence_length:,} tokens: their "
        f"encoder of {encoder.num_parameters:,} parameters, {share:.1%} of the FLOP, is on the first stage"
    )


def explain(problem: Problem, configuration: HybridConfiguration, prediction: Prediction) -> tuple[str, ...]:
    """Return what binds, what stands where, what memory is free, and how the layout is launched."""
    priced, details = _Priced.of(problem, configuration), prediction.details
    cost, rows = priced.cost, details["stages"]
    lines = [_binding_line(prediction)]
    if (words := configuration.chunk_words(cost.transformer.num_layers)) is not None:
        lines.append(words)
    if not configuration.is_even:
        lines.append(configuration.stage_words)
    if not cost.is_even:
        lines.append(_classes_line(configuration, details))
    if (tuning := cost.transformer.fine_tuning) is not None:
        held = trained_stage_parameters(cost.transformer, Layouts.one())
        lines.append(
            f"{tuning.words}: {float(held.dense.sum()):,.0f} parameters are trained, and the network's own "
            f"{cost.transformer.num_parameters:,} are frozen"
        )
    if (encoder := cost.transformer.encoder) is not None:
        lines.append(_images_line(cost.transformer, encoder))
    if cost.transformer.trained.has_frozen:
        lines.append(
            f"frozen are {cost.transformer.trained.words}: {cost.transformer.num_trained_parameters:,} of "
            f"{cost.transformer.num_parameters:,} parameters are trained"
        )
    lines.append(
        f"{details['tokens_per_s']:,.0f} tokens/s; {details['flop_utilisation']:.0%} of the devices' "
        f"{'' if cost.first.number_type is None else 'bf16 '}peak goes into "
        f"the network's own FLOP"
    )
    if whose := priced.launched.added_up:
        copies = " copies of" * (whose == "dp_replica")
        sums = f"the network's switches add up{copies} gradients, as the cluster says"
        lines.append(f"in_network: {sums}; inside machines rings do")
    if cost.first.expert_imbalance > 1:
        lines.append(
            f"the rank whose experts have most tokens is taken to have {cost.first.expert_imbalance:g} times the mean "
            f"(calibration.expert_imbalance)"
        )
    lines += _memory_lines(
        rows, prediction.memory_bytes, configuration.pipeline, _bf16_saving(cost.first, configuration)
    )
    lines += _launch_lines(priced)
    lines += [*_uncalibrated(cost), *_outside_lines(cost, configuration)]
    if len(cost.groups) > 1:
        lines.append(_MEASURED)
    return tuple(lines)


def _binding_line(prediction: Prediction) -> str:
    """Return which parts of an iteration take longest."""
    parts, total = prediction.breakdown_s, prediction.iteration_time_s
    shares = {
        "computation": parts["compute"] + parts["optimizer"],
        "computing again": parts["recompute"],
        "tensor-parallel exchange": parts["tensor"],
        "exchange between experts": parts["expert"],
        "context-parallel exchange": parts["context"],
        "launching kernels": parts["launch"],
        "the pipeline's bubble": parts["bubble"],
        "transfers between stages": parts["pipeline"],
        "exchange between replicas": parts["data"],
        "input": parts["input_stall"],
    }
    listed = sorted(shares, key=lambda name: -shares[name])
    rest = [f"{name} {shares[name] / total:.0%}" for name in listed[1:] if shares[name] >= 0.005 * total]
    return f"{listed[0]} binds: {shares[listed[0]] / total:.0%} of an iteration" + "; ".join(["", *rest])


def _classes_line(configuration: HybridConfiguration, details: Mapping[str, Any]) -> str:
    """Return what each class of replicas takes, or what a micro-batch takes the stages of a pipeline."""
    if configuration.replicas:
        words = [
            f"{one.data} on {one.machines} do {one.num_microbatches} micro-batch{'es' * (one.num_microbatches != 1)} "
            f"each in {format_human(seconds, Dimension.TIME)}"
            for one, seconds in zip(configuration.replicas, details["class_s"], strict=True)
        ]
        return f"replicas: {'; '.join(words)}"
    rows = details["stages"]
    both = [row["forward_s"] + row["backward_s"] + row["sent_forward_s"] + row["sent_backward_s"] for row in rows]
    slowest = max(range(len(rows)), key=lambda index: both[index])
    low, high = (format_human(one(both), Dimension.TIME) for one in (min, max))
    where = rows[slowest]["machines"]
    place = f"stage {slowest + 1}" + (f" on {where}" if where is not None else "")
    return f"a micro-batch takes a stage {low} to {high}; {place} is the slowest"


def _bf16_saving(cost: GroupCost, chosen: HybridConfiguration) -> float:
    """Return the share of gradients' bytes that a program saves which may be asked for bf16; 0 where it may not."""
    short, is_copied = PROGRAMS[cost.program].bf16_gradients, chosen.zero != 1 and chosen.data * chosen.context > 1
    is_told, is_bf16 = cost.problem.calibration.gradients is not None, cost.problem.training.dtype == "bf16"
    if short is None or is_copied or is_told or not is_bf16:
        return 0.0
    return 1 - short.gradient_bytes / cost.precision.gradient_bytes


def _memory_lines(
    rows: Sequence[Mapping[str, Any]], memory_bytes: Mapping[str, float], stages: int, bf16_saving: float
) -> list[str]:
    """Return the free memory of every stage, of so many in a pipeline, or that it does not fit.

    ``bf16_saving``: the share of gradients' bytes that is saved if they are asked for in bf16.
    """
    rooms = [(row["room_bytes"], index) for index, row in enumerate(rows) if row["room_bytes"] is not None]
    if not rooms:
        return []
    smallest, index = min(rooms)
    place, name = index % stages + 1, rows[index].get("machines")
    named = "" if name is None else f" on {name}"
    if smallest < 0:
        held, missing = (format_human(one, Dimension.DATA, 4) for one in (rows[index]["memory_bytes"], -smallest))
        mended = all(-room <= bf16_saving * rows[at]["terms_bytes"]["gradients"] for room, at in rooms)
        hint = "; with gradients in bf16, which alters what is learned, it fits: calibration.gradients: bf16" * mended
        return [
            f"it does not fit: a device of stage {place}{named} would hold {held}, {missing} more than it may{hint}"
        ]
    reserve_bytes = memory_bytes.get("reserve", 0.0)
    kept = f", beside a reserve of {format_human(reserve_bytes, Dimension.DATA)}" if reserve_bytes else ""
    words = [format_human(room, Dimension.DATA) for room, _ in rooms]
    if len(words) > _MOST_STAGES:
        low = format_human(smallest, Dimension.DATA)
        return [f"room on a device{kept}: {low}{named} on stage {place} of {stages}, {words[-1]} on the last"]
    return [f"room on a device, stage by stage{kept}: {', '.join(words)}"]


def _launch_lines(priced: _Priced) -> list[str]:
    """Return how a layout is launched, or what Megatron-LM lacks for it."""
    cost, chosen, network = priced.cost, priced.chosen, priced.cost.transformer
    if other := other_program(cost.first.program):
        return [other]
    strange = {one.group.device.kind: one.group.device.name for one in cost.groups if one.group.device.kind != "gpu"}
    if strange:
        files = "; `planner export --to maxtext` writes files for TPUs, and its layouts are searched" * (
            "tpu" in strange
        )
        return [f"no command is printed for {' and '.join(strange.values())}: Megatron-LM runs on GPUs{files}"]
    if cost.has_replicas and (chosen.pipeline > 1 or len({one.num_microbatches for one in chosen.replicas}) > 1):
        return [
            "Megatron-LM gives every replica as many micro-batches and numbers ranks stage by stage, so that it cannot "
            "launch this layout: a script of your own must give each replica its own number, and weigh its gradients "
            "by its samples; the other decisions, in its words: "
            f"{' '.join(all_options(network, chosen, priced.launched))}"
        ]
    lines = []
    if len(cost.groups) > 1:
        names = ", then ".join(str(one) for one in cost.names)
        lines.append(f"ranks are numbered machine by machine, those of {names}: number the machines in that order")
    if len({one.group.devices_per_machine for one in cost.groups}) > 1:
        counts = ", ".join(f"{one.group.devices_per_machine} of {one.machines}" for one in cost.groups)
        return [
            *lines,
            f"machines have unlike numbers of devices ({counts}): start each kind with its own --nproc-per-node",
        ]
    return [*lines, *launch_words(network, chosen, priced.launched)]


def warnings(cost: HybridCost, chosen: HybridConfiguration) -> list[str]:
    """Return what makes the figures doubtful: of another device, memory not known, none kept free, out of ranges."""
    found = _uncalibrated(cost)
    for name in dict.fromkeys(one.group.device.name for one in cost.groups if one.memory_limit_bytes == inf):
        found.append(f"the memory of {name} is not known, so that any layout fits")
    if not all(one.reserve_bytes for one in cost.groups):
        found.append(
            "calibration.memory_reserve is 0: the device's context, buffers of the communication library and pieces of "
            "free memory take some GiB more"
        )
    if cost.transformer.fine_tuning is not None:
        found.append(
            "training by adapters is not in the fit: two published steps of LoRA on H100 take 11 % less than is "
            "counted here (docs/hybrid.md)"
        )
    if cost.transformer.trained.has_frozen:
        found.append("no measured step with frozen parts is in the fit (docs/hybrid.md)")
    return [*found, *_host_lines(cost, chosen), *_outside_lines(cost, chosen)]


def _host_lines(cost: HybridCost, chosen: HybridConfiguration) -> list[str]:
    """Return how much host memory activations take that wait there, which is not checked; none without."""
    if not (chosen.offload_layers or chosen.has_modules_away) or not cost.is_even:
        return []
    codes, group = chosen.codes(), cost.first
    kept, whole = (
        group.memory(group.layouts({name: np.array([code]) for name, code in each.items()}))["activations"][0]
        for each in (codes, {**codes, **dict.fromkeys(AWAY, 0)})
    )
    devices = min(group.group.devices_per_machine, chosen.num_devices)
    words = format_human(float(whole - kept) * devices, Dimension.DATA)
    return [f"activations that wait on the host take up to {words} of the memory of a host: check that it has as much"]


def _uncalibrated(cost: HybridCost) -> list[str]:
    """Return a line for each device whose shares were not fitted."""
    names = dict.fromkeys(one.group.device.name for one in cost.groups if not one.is_calibrated)
    return [f"{name} {UNCALIBRATED}" for name in names]


def _outside_lines(cost: HybridCost, chosen: HybridConfiguration) -> list[str]:
    """Return a line for each device with what of the layout was not measured on it; none where none of it was."""
    found: dict[str, None] = {}
    for one in cost.groups:
        if strange := outside(one, chosen):
            where = f"outside of what was measured on {one.group.device.name} (in brackets), where errors may be larger"
            found[f"{where}: {'; '.join(strange)}"] = None
    return list(found)


def error_band(cost: GroupCost, chosen: HybridConfiguration) -> dict[str, object] | None:
    """Return the error measured nearest to a prediction: an 80 % band of measured / predicted - 1.

    ``from`` names the family, or the device, ``all`` or ``unmeasured`` where no family that has a band holds the
    question; ``conditions`` say what was measured, and what of the question lies outside. None without a band, and for
    images, modulation, adapters and frozen parts, none of which any measured step of the fit has.
    """
    rates, device, network = cost.problem.transformer_rates, cost.group.device.name, cost.transformer
    has_images = network.image is not None or network.encoder is not None or network.has_modulation
    if has_images or network.fine_tuning is not None or network.trained.has_frozen:
        return None
    if cost.number_type is not None:
        return _low_band(cost)
    families: Mapping[str, Any] = _measured(cost).get("families", {})
    listed = sorted(families, key=lambda name: (families[name]["sizes"]["devices"][1], name))
    source = next((name for name in listed if not any(_strange(families[name], cost, chosen))), "")
    band: Mapping[str, Any] = rates.get("bands", {}).get(source, {})
    if band.get("coverage") is not None:
        conditions = _CONDITIONS.get(source, "")
    else:
        source, band = unseen_band(cost)
        conditions = _UNSEEN.get(source, f"families measured on {device}") + _LEFT_OUT
        if found := outside(cost, chosen):
            conditions += f"; outside of what was measured on {device}: {'; '.join(found)}"
    if band.get("coverage") is None or cost.slowdown != 1:
        return None
    return {**{key: band[key] for key in ("low", "high", "coverage")}, "from": source, "conditions": conditions}


def _low_band(cost: GroupCost) -> dict[str, Any] | None:
    """Return the error of products in eight or four bits, where it was validated: of networks that a fit did not see.

    None on devices, of types and with programs of which no step was measured.
    """
    fitted, low = cost.problem.transformer_rates["low_precision"], cost.problem.training.low
    band: Mapping[str, Any] = fitted.get("band", {})
    assert low is not None, "asked by number_type"
    measured = cost.group.device.name in LOW_MEASURED.get(low.name, ()) and cost.program == MEGATRON_CORE
    if not measured or band.get("coverage", 0.0) < _VALIDATED or cost.slowdown != 1:
        return None
    conditions = f"{band['networks']} networks in eight and four bits on H100 and Blackwell, Megatron-Core{_LEFT_OUT}"
    return {
        **{key: band[key] for key in ("low", "high", "coverage")},
        "from": "networks in short products",
        "conditions": conditions,
    }


def unseen_band(cost: GroupCost) -> tuple[str, Mapping[str, float]]:
    """Return the band of what a fit did not see on a device, and whose: its own, all devices', or unmeasured ones'."""
    bands: Mapping[str, Any] = cost.problem.transformer_rates.get("device_bands", {})
    names = (cost.group.device.name, "all") if cost.is_calibrated else ("unmeasured",)
    return next(((name, bands[name]) for name in names if name in bands), ("", {}))


def outside(cost: GroupCost, chosen: HybridConfiguration) -> list[str]:
    """Return what was not measured on the device; nothing where none was, which is said elsewhere."""
    known = _measured(cost)
    return list(_strange(known, cost, chosen)) if known else []


def _measured(cost: GroupCost) -> Mapping[str, Any]:
    """Return the ranges of what was measured on a device; empty where nothing was."""
    found: Mapping[str, Any] = cost.problem.transformer_rates.get("ranges", {}).get(cost.group.device.name, {})
    return found


def _strange(known: Mapping[str, Any], cost: GroupCost, chosen: HybridConfiguration) -> Iterator[str]:
    """Yield sizes outside of their range, parts that no row has, and the program where no row has it."""
    network = cost.transformer
    sizes = {
        "devices": chosen.num_devices,
        "hidden size": network.hidden_size,
        "layers": network.num_layers,
        "sequence length": network.sequence_length,
        "vocabulary": network.vocabulary_size,
        "tensor degree": chosen.tensor,
        "stages": chosen.pipeline,
        "micro-batch": chosen.microbatch,
        "context degree": chosen.context,
        "experts": 0 if network.experts is None else network.experts.num_experts,
    }
    if not network.vocabulary_size:  # a network of images
        del sizes["vocabulary"]
    for name, value in sizes.items():
        least, most = known["sizes"][name]
        unit = _FILLED_WORDS if name == "vocabulary" else 1
        if not -(-least // unit) <= -(-value // unit) <= -(-most // unit):
            yield f"{name} {value:,} ({f'{least:,} to {most:,}' if least < most else f'all {most:,}'})"
    if chosen.offload_optimizer:
        yield "an optimiser on the host"
    if network.latent is not None and not known["sizes"]["experts"][1]:
        yield "latent attention"
    if cost.program not in known["software"]:
        yield f"the program {cost.program} ({', '.join(known['software'])})"


def timeline(problem: Problem, configuration: HybridConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what a device of every stage does in some steps: the schedule, task by task, and what follows it."""
    priced, prediction = _Priced.of(problem, configuration), predict(problem, configuration)
    read = priced.cost.first.input_time(configuration.data) if priced.cost.is_even else None
    drawn = draw(list(priced.pipelines(prediction)), prediction, read, problem.calibration.strategy)
    return repeated(drawn, num_iterations, prediction.iteration_time_s)
