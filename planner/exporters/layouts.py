"""What a plan asks of a program that trains one network by degrees: the layout, its flags, and what is changed.

An exporter starts with :func:`layout_of`, changes by :meth:`Layout.instead` what its program cannot do, and writes what
is left by the table of flags (:data:`planner.decisions.FLAGS`). So that nothing is dropped, every change is a note;
where the cost model knows what it costs, the note says it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from planner.decisions import FLAGS, LAYOUT, NO_MODULES, written
from planner.errors import InfeasibleError
from planner.exporters.export import Export, Job, refused
from planner.exporters.machines import device_of, require_kinds, used_machines
from planner.exporters.scripts import COLLNET, Parsed, comment_lines, how_to_run, torchrun_script
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.hybrid.configuration import ORDER_NAMES, HybridConfiguration, PipelineStage
from planner.families.hybrid.prediction import added_up, free_bytes, predict
from planner.frozen import frozen
from planner.trained import EVERYTHING, Trained
from planner.transformer import Transformer
from planner.units import Dimension, format_human
from planner.used_machines import UsedMachines

_HYBRID, _ALL_REDUCE = "hybrid", "all_reduce"
_FLAGGED = (*(name for name in LAYOUT if any(name in flags for flags in FLAGS.values())), "num_devices")
_TUNES = ("megatron-bridge", "deepspeed", "accelerate", "torchtitan")  # that adapters can be trained with
_SHORTENS = ("megatron", "megatron-bridge", "primus", "torchtitan")  # that may have products in eight or four bits
_FREEZES = ("deepspeed", "accelerate")  # whose model a user's script makes, and can freeze parts of
# Of a model of Llama's or LLaVA's make in transformers: the modules of a part that can be frozen.
_MODULES = {
    "embedding": ("model.model.embed_tokens",),
    "layers": ("model.model.layers",),
    "head": ("model.model.norm", "model.lm_head"),
    "encoder": ("model.model.vision_tower",),
    "projector": ("model.model.multi_modal_projector",),
    "attention": ("layer.self_attn",),
    "feed_forward": ("layer.mlp",),
    "experts": ("layer.mlp.experts",),
    "router": ("layer.mlp.gate",),
}
_TOLD_ENDS = "the program must be told where they end, so that attention stops there"
# Of documents in a pack. Sources: ``FinetuningDatasetConfig`` and its checks in ``training/config.py`` of
# Megatron-Bridge 0.3; ``get_attention_config`` of ``models/common/config_utils.py`` of torchtitan 0.3.
_ENDS_OF_DOCUMENTS = {
    "megatron-bridge": "give its recipe, as dataset, FinetuningDatasetConfig(packed_sequence_specs=PackedSequenceSpecs("
    "...)), which takes micro-batches of 1",
    "torchtitan": "attention stops where its data say that one ends; they have documents of their own lengths",
}
_OTHER_TARGET = "Choose another target."
_SAME = 5e-4  # shares of an iteration below this are not worth a figure


def pinned_by(program: str) -> tuple[str, ...]:
    """Return the decisions that files of a program say: those with a flag, and the degrees that follow from them."""
    flags = FLAGS[program]
    return (*(name for name in LAYOUT if name in flags or name in ("pipeline", "data")), "num_devices")


def pins_of(chosen: HybridConfiguration, *names: str) -> dict[str, object]:
    """Return decisions as a ``fix`` block pins them: those named, or all that some program has a flag for.

    With the number of stages their layers, where these are listed.

    >>> pins_of(HybridConfiguration(global_batch_size=8, tensor=2), "tensor", "num_devices")
    {'tensor_parallel_size': 2, 'num_devices': 2}
    """
    listed = [name for name in names or _FLAGGED if name not in LAYOUT or _has_meaning(chosen, name)]
    found = {LAYOUT[name].key if name in LAYOUT else name: getattr(chosen, name) for name in listed}
    if chosen.pipeline > 1 and chosen.stages and "pipeline" in listed:
        found["layers_per_stage"] = [one.layers for one in chosen.stages]
    return found


def _has_meaning(chosen: HybridConfiguration, name: str) -> bool:
    """Whether a decision says something beside the others."""
    other = LAYOUT[name].goes_with
    return other is None or getattr(chosen, other[0]) == other[1]


def shared_pins(chosen: HybridConfiguration, *names: str) -> dict[str, object]:
    """Return pins as :func:`pins_of`, less the stage of ZeRO where one data and context rank has nothing to share."""
    is_alone = chosen.data * chosen.context == 1
    return pins_of(chosen, *(name for name in names or _FLAGGED if not (is_alone and name == "zero")))


def read_layout(
    file: Parsed,
    program: str,
    *,
    global_batch_size: int = 1,
    num_devices: int | None = None,
    required: Sequence[str] = (),
    **own: object,
) -> HybridConfiguration:
    """Return a layout that was read from a file, by the flags of a program.

    Parameters
    ----------
    num_devices
        Where the file says how many devices there are: the data-parallel degree is what the other degrees leave.
    required
        Decisions whose flags must be there.
    own
        Decisions that the program writes in a way of its own, read already.

    Raises
    ------
    SpecError
        If a flag has no such value or is missing, or degrees do not divide the devices.
    """
    decisions: dict[str, Any] = dict(own)
    for name, flag in FLAGS[program].items():
        row = LAYOUT[name]
        if name in own:
            continue
        if row.is_flag:
            decisions[name] = flag in file.flags if file.is_text else bool(file.value(flag))
        elif row.names:
            decisions[name] = str(file.value(flag, row.default))
        else:
            least = row.least if row.is_count else 0
            decisions[name] = file.count(flag, None if name in required else least, least=least)
    for name, value in decisions.items():
        if (values := LAYOUT[name].values) and value not in values:
            raise file.fault(
                f"{str(value)[:60]!r} is none.", LAYOUT[name].key, f"Write one of {', '.join(map(str, values))}."
            )
    if num_devices is not None:
        degrees = [decisions.get(name, 1) for name in ("tensor", "context", "pipeline")]
        if num_devices % prod(degrees):
            words = " x ".join(map(str, degrees))
            raise file.fault(f"{num_devices} devices do not divide by {words}.", hint="Correct the degrees.")
        decisions["data"] = num_devices // prod(degrees)
    return HybridConfiguration(global_batch_size=global_batch_size, **decisions)


def with_layers(file: Parsed, chosen: HybridConfiguration, layers: Sequence[int], place: str) -> HybridConfiguration:
    """Return a layout that was read with the layers of its stages, or chunks; ``place``: where the file says them.

    Raises
    ------
    SpecError
        If these are other stages or chunks.
    """
    if not layers or chosen.pipeline == 1:
        return chosen
    if len(layers) != chosen.num_chunks:
        what = f"{len(layers)} parts are no {chosen.pipeline} stages of {chosen.interleave} each."
        raise file.fault(what, place, "Correct one of both.")
    return replace(chosen, stages=tuple(PipelineStage(layers=one) for one in layers))


# -- the layout --------------------------------------------------------------------------------------------------------


@frozen
class Layout:
    """A layout that a program is to run."""

    target: str  # the exporter's name, for refusals
    job: Job
    chosen: HybridConfiguration  # the decisions; of a plan of the family ``all_reduce`` those of data parallelism alone
    rows: tuple[UsedMachines, ...]  # the machines, in the order of ranks
    notes: tuple[str, ...] = ()  # what was changed against the plan, and what is left to the user
    # of a plan of the family ``pipeline``: how many layers of the network each stage has; else empty
    layers: tuple[int, ...] = ()

    @property
    def network(self) -> Transformer | None:
        """The transformer's sizes; None for a network that is known, or cut into stages, by its layers only."""
        network = None if self.layers else self.job.problem.dnn.transformer
        if network is None or not network.trained.has_frozen:
            return network
        return replace(network, trained=EVERYTHING)  # which is the same network; notes say what is frozen

    @property
    def dtype(self) -> str:
        """Of the numbers, as a spec has it."""
        return self.job.problem.training.dtype

    @property
    def is_hybrid(self) -> bool:
        """Whether the family ``hybrid`` made the plan, so that its cost model knows every change."""
        return self.job.plan.family == _HYBRID

    @property
    def free_bytes(self) -> float:
        """What is left of the memory of the fullest device; infinite where it is not counted."""
        return free_bytes(self.job.problem, self.chosen) if self.is_hybrid else float("inf")

    def fits(self, **changes: object) -> bool:
        """Whether devices hold the layout with other decisions; True where that is not counted."""
        known: dict[str, Any] = changes
        return replace(self, chosen=replace(self.chosen, **known)).free_bytes >= 0

    def noted(self, *notes: str) -> "Layout":
        """Return the layout with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def refused(self, why: str, hint: str) -> InfeasibleError:
        """Return the error of a layout that the program cannot run."""
        return refused(self.target, why, hint)

    def with_ring(self, why: str) -> "Layout":
        """Return the layout with keys and values that pass round a ring of the context ranks."""
        if self.chosen.context == 1 or self.chosen.context_method == "ring":
            return self
        return self.instead(why, context_method="ring")

    def instead(self, why: str, **changes: object) -> "Layout":
        """Return the layout with other decisions, and a note of why and of what that costs.

        Raises
        ------
        InfeasibleError
            If a device would then hold more than it may.
        """
        known: dict[str, Any] = changes
        changed = replace(self.chosen, **known)
        if changed.interleave < self.chosen.interleave and self.chosen.stages:
            stages, count = self.chosen.stages, changed.pipeline
            if self.chosen.is_folded:  # the chunks of a device stand at the same distance from the turn
                stages = (*stages[:count], *stages[count:][::-1])
            layers = [sum(one.layers for one in stages[index::count]) for index in range(count)]
            changed = replace(
                changed, stages=tuple(replace(one, layers=all_) for one, all_ in zip(stages, layers, strict=False))
            )
        if not self.is_hybrid:
            return replace(self, chosen=changed).noted(why)
        found = replace(self, chosen=changed)
        if (left_bytes := found.free_bytes) < 0:
            short = format_human(-left_bytes, Dimension.DATA)
            pins = [f"fix.{LAYOUT[name].key}: {written(value)}" for name, value in changes.items() if name in LAYOUT]
            hint = f"Pin {', '.join(pins)} and plan again, or choose another target." if pins else _OTHER_TARGET
            raise self.refused(f"{why}, and then a device holds {short} too much", hint)
        if self.job.is_probe:
            return found
        planned_s = self.job.plan.prediction.iteration_time_s
        now_s = predict(self.job.problem, changed).iteration_time_s
        cost = "an iteration then takes as long as planned"
        if abs(now_s / planned_s - 1) >= _SAME:
            times = f"{time_text(now_s)}, not the plan's {time_text(planned_s)}"
            cost = f"an iteration then takes {times} ({now_s / planned_s - 1:+.1%})"
        return found.noted(f"{why}: {cost}")

    def with_whole_layers(self) -> "Layout":
        """Return the layout with recomputation of whole layers or none; see :meth:`with_plain_recomputation`."""
        if self.chosen.offload_percent != LAYOUT["offload_percent"].default:
            return self._with_whole_state().with_whole_layers()
        if self.chosen.recompute != "selective":
            return self.with_plain_recomputation()
        plain = LAYOUT["recompute_modules"].default
        kind = "none" if self.fits(recompute="none", recompute_modules=plain) else "full"
        why = f"it computes whole layers again, or nothing; {kind} here"
        return self.instead(why, recompute=kind, recompute_modules=plain)

    def with_plain_recomputation(self) -> "Layout":
        """Return the layout without recomputation of single modules, or of some layers of a stage only.

        And with all activations on the device, and all of an optimiser's state on the host where it is there.
        """
        if self.chosen.offload_layers or self.chosen.has_modules_away:
            why = "it keeps activations on the device"
            return self.instead(why, offload_layers=0, offload_modules=NO_MODULES).with_plain_recomputation()
        if self.chosen.offload_percent != LAYOUT["offload_percent"].default:
            return self._with_whole_state().with_plain_recomputation()
        if self.chosen.recompute_layers:
            return self.instead("it computes all layers again, or none", recompute_layers=0)
        if self.chosen.recompute_modules != LAYOUT["recompute_modules"].default:
            return self.with_whole_layers()
        return self

    def _with_whole_state(self) -> "Layout":
        """Return the layout with all of an optimiser's state on the host."""
        return self.instead("it has all of an optimiser's state on the host, or nothing", offload_percent=100)

    def with_whole_shards(self) -> "Layout":
        """Return the layout with states shared out over all data ranks."""
        if self.chosen.num_copies == 1:
            return replace(self, chosen=replace(self.chosen, shard=0))
        return self.instead("it shards over all data ranks", shard=0)

    def with_sums_in_network(self) -> tuple["Layout", tuple[str, ...]]:
        """Return the layout with a note of switches that add up what it counts on, and the environment for it."""
        if not (self.is_hybrid and added_up(self.job.problem, self.chosen)):
            return self, ()
        own = self.target in ("megatron", "megatron-bridge")  # which clear the variable, and have an option
        words = "the network's switches add up gradients: NCCL needs its plug-in for SHARP"
        return self.noted(words), () if own else (COLLNET,)

    def with_usual_order(self, why: str = "ranks are always numbered") -> "Layout":
        """Return the layout with ranks numbered from the tensor degree outwards, as most programs have it."""
        if self.chosen.order == ORDER_NAMES[0] or not self.is_hybrid:
            return self
        return self.instead(f"{why} {ORDER_NAMES[0]}, from the inside outwards", order=ORDER_NAMES[0])


def time_text(seconds: float) -> str:
    """Return a time with four digits."""
    return format_human(seconds, Dimension.TIME, 4)


def layout_of(target: str, job: Job, *, kinds: Sequence[str] = ("gpu", "cpu"), low: Sequence[str] = ()) -> Layout:
    """Return what a plan asks of a program that starts one process a device and gives all the same work.

    Parameters
    ----------
    kinds
        Of devices that the program runs on.
    low
        Types of eight and four bits that what is written for the program can ask for.

    Raises
    ------
    InfeasibleError
        For plans of other families and other devices, for products in other types, and
        where devices have unlike shares of the batch.
    """
    family, chosen = job.plan.family, job.plan.configuration
    rows = used_machines(job) if family in {_HYBRID, _ALL_REDUCE} else ()
    require_kinds(target, job, rows, *kinds)
    network = job.problem.dnn.transformer
    tuning = None if network is None else network.fine_tuning
    has_frozen = network is not None and network.trained.has_frozen
    can_train = _TUNES if tuning is not None else _FREEZES if has_frozen else _SHORTENS
    if (short := job.problem.training.low) is not None and short.name not in low:
        why = f"what is written for it has no products in {short.name}"
        raise refused(target, why, _export_to("Write dnn.dtype: bf16", [one for one in _SHORTENS if one in can_train]))
    if tuning is not None and target not in _TUNES:
        hint = _export_to("", _TUNES if short is None else [one for one in _TUNES if one in _SHORTENS])
        raise refused(
            target, f"what is written for it trains every parameter, and the plan trains {tuning.words}", hint
        )
    if network is not None and network.trained.has_frozen and target not in _FREEZES:
        why = f"what is written for it trains every parameter, and in the plan {network.trained.words} are frozen"
        own = "Freeze them in a script of your own"
        raise refused(target, why, _export_to(own, _FREEZES if short is None else ()))
    if isinstance(chosen, AllReduceConfiguration):
        return _data_parallel(target, job, chosen, rows)
    if not isinstance(chosen, HybridConfiguration):
        hint = "Plan with families: [all_reduce, hybrid]."
        if family == "parameter_server":
            hint = f"`planner export --to tfjob` starts its machines. {hint}"
        raise refused(target, f"it trains by all-reduce and by degrees, and the plan is of the family {family}", hint)
    are_unlike = len({one.num_microbatches for one in chosen.replicas}) > 1
    if chosen.replicas and (are_unlike or chosen.pipeline > 1):  # whose ranks would be numbered stage by stage
        same = "it gives every replica the same number of micro-batches, and those of the plan do unlike numbers"
        raise refused(
            target,
            same if are_unlike else "nothing is written here for pipelines that each stand on another kind of machines",
            "Pin fix.device, or limit the machines to one kind; or weigh gradients by samples in a script of your own.",
        )
    found = Layout(target=target, job=job, chosen=chosen, rows=rows)
    if network is not None and network.document_length is not None:
        found = found.noted(
            f"samples are packed with documents of {network.document_length:,} tokens: "
            f"{_ENDS_OF_DOCUMENTS.get(target, _TOLD_ENDS)}"
        )
    if tuning is not None and target not in ("megatron-bridge", "torchtitan"):  # which write them themselves
        adapters = f"LoraConfig(r={tuning.rank}, lora_alpha={tuning.alpha:g}, target_modules={list(tuning.modules)})"
        four = " of a model that is loaded in four bits, BitsAndBytesConfig(**quantization_config.json)"
        found = found.noted(
            f"train peft.get_peft_model(model, {adapters}){four * tuning.is_quantised}; adapter_config.json says the "
            f"same: LoraConfig.from_pretrained('.')"
        )
    if network is not None and network.trained.has_frozen:
        found = found.noted(_freezing_note(network.trained))
    if len(chosen.groups) > 1:
        order = ", then ".join(chosen.groups)
        parts = "replicas" if chosen.replicas else "stages"
        found = found.noted(f"{parts} stand on unlike machines: give those of {order} their ranks in this order")
    return found


def transformer_layout(
    target: str, job: Job, *, kinds: Sequence[str] = ("gpu",), low: Sequence[str]
) -> tuple[Layout, Transformer]:
    """Return what :func:`layout_of` does for a program that trains transformers alone, and the transformer.

    Raises
    ------
    InfeasibleError
        As :func:`layout_of`, and for other networks.
    """
    layout = layout_of(target, job, kinds=kinds, low=low)
    if (network := layout.network) is None:
        hint = "Export to ddp, or to deepspeed."
        raise layout.refused(f"{job.problem.dnn.name} is not known as a transformer", hint)
    return layout, network


def _export_to(first: str, targets: Sequence[str]) -> str:
    """Return a hint: what else may be done, and the targets that do not refuse the same plan."""
    words = f"xport to {', '.join(targets)}" if targets else ""
    if not first:
        return f"E{words}." if words else "Run it in a script of your own."
    return f"{first}{f'; or e{words}' * bool(words)}."


def _freezing_note(trained: Trained) -> str:
    """Return how a script freezes what the plan does, before the optimiser is made."""
    modules = [] if not trained.frozen_layers else ["model.model.embed_tokens"]
    modules += [f"model.model.layers[:{trained.frozen_layers}]"] * (trained.frozen_layers > 0)
    inside: list[str] = []
    for part in trained.frozen_parts:
        (inside if _MODULES[part][0].startswith("layer.") else modules).extend(_MODULES[part])
    each = f"{', '.join(inside)} of each layer in model.model.layers" if inside else ""
    names = " and ".join(one for one in (", ".join(modules), each) if one)
    return (
        f"freeze {trained.words} before the optimiser is made, and hold them in bf16: requires_grad_(False) of "
        f"{names}, as a model of Llama's make names them; frozen.json says the same"
    )


def _data_parallel(target: str, job: Job, chosen: AllReduceConfiguration, rows: tuple[UsedMachines, ...]) -> Layout:
    """Return the layout of a plan that copies the network to every device."""
    batch, number = chosen.global_batch_size, chosen.num_devices
    if batch % number or len({(one.batch_per_device) for one in chosen.groups}) > 1:
        raise refused(
            target,
            f"it gives all devices as many samples, and the plan shares {batch:,} out over {number:,} unevenly",
            f"Write dnn.global_batch: {-(-batch // number) * number}, or fix.batch_shares: equal; or export to ddp.",
        )
    share = batch // number
    steps = next(n for n in range(chosen.gradient_accumulation_steps, share + 1) if share % n == 0)
    found = Layout(
        target=target,
        job=job,
        chosen=HybridConfiguration(
            global_batch_size=batch, data=number, microbatch=share // steps, overlap_data=number > 1
        ),
        rows=rows,
    )
    if found.dtype == "tf32":
        found = found.noted('TF32 is turned on in the program: torch.set_float32_matmul_precision("high")')
    if steps != chosen.gradient_accumulation_steps:
        found = found.noted(
            f"{share} samples of a device do not divide by {chosen.gradient_accumulation_steps} micro-batches; "
            f"{steps} are written"
        )
    if chosen.compression is not None:
        found = found.noted(
            f"the plan leaves out {chosen.compression.removed:.0%} of every gradient; {target} has no option for that: "
            f"a hook of your own must do it, or gradients go whole"
        )
    algorithms = sorted({group.algorithm for group in chosen.fusion_groups})
    if number > 1 and algorithms:
        is_cpu = device_of(job, rows[0]).kind == "cpu"
        who = "gloo chooses by itself" if is_cpu else "NCCL chooses by itself, or by NCCL_ALGO for all"
        found = found.noted(f"the plan's all-reduces go by {', '.join(algorithms)}; {who}")
    return found


def layout_export(
    layout: Layout,
    version: str,
    program: str,
    *,
    files: Mapping[str, str] | None = None,
    environment: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Export:
    """Return the launch files of a layout: those given, and ``launch.sh``, one process a device on every machine.

    Parameters
    ----------
    program
        The program and its options, quoted for a shell.
    environment
        Lines before the launcher.
    notes
        Before those of the layout; they stand in no file.
    """
    layout, more = layout.with_sums_in_network()
    head = comment_lines([f"{version}: {layout.job.problem.dnn.name}, {layout.chosen.headline}", *layout.notes])
    script = torchrun_script(layout.rows, program, head=head, environment=(*environment, *more))
    return Export(
        target=layout.target,
        version=version,
        files={**(files or {}), "launch.sh": script},
        notes=(*notes, *layout.notes),
        how_to_run=how_to_run(layout.rows),
    )
