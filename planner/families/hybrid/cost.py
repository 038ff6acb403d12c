"""What a layout costs on the machines of a question: the models of :mod:`planner.models` with the question's figures.

Seconds: :mod:`planner.models.transformer_time`, an optimiser on the host and bytes by :mod:`planner.models.memory`,
waiting for input by :mod:`planner.models.input`. The figures of devices and of the program, which
``calibration.program`` names, are fitted to measurements (:mod:`planner.data.fits`). Efficiencies of links that a spec
gives count instead of the fitted ones.

Layouts are columns of numbers, one column a decision. :class:`HybridCost` prices them on one machine group or several,
by their :class:`Placement`:

- *stages*: each group has some stages that follow each other, in the order of the groups (columns ``stages_k``); the
  layers are cut as columns ``layers_0 .. layers_(p-1)`` say, or else as is best;
- *replicas*: each group has whole replicas (columns ``data_k``), of the same cut;
- *even*: the reduction to one group whose stages hold equal layers (column ``pipeline``), with all schedules, virtual
  stages, ZeRO 2 and 3 and an optimiser on the host: :class:`GroupCost`.

The best cut: of many micro-batches that whose slowest stage is quickest, and nearly so of few: there a longer first
stage may be worth its seconds. Of a setting with few cuts (:func:`has_few_cuts`) all are tried, but for those whose
bound is above the best.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import combinations
from math import comb, inf

import numpy as np

from planner.cluster import TRAINING_DTYPES, Cluster, MachineGroup
from planner.constraints import memory_limit_bytes
from planner.cost import Floats
from planner.decisions import LAYOUT
from planner.errors import Fault, InfeasibleError, SpecError
from planner.families.hybrid.configuration import (
    CODES_OF_CUTS,
    HybridConfiguration,
    barred_modules,
    is_dealt_evenly,
    layouts_of,
    pinned_cut,
)
from planner.models.balance import balanced_layers, share_microbatches, shared_bound_s
from planner.models.compute import Constants, DeviceRates, Software, device_shares
from planner.models.input import InputTime, Samples, Strategy, input_time, stall_s
from planner.models.layer_memory import Kernels, layer_bytes
from planner.models.layouts import Bools, Ints, Layouts, Recompute, cut_of, layers_by_kind
from planner.models.low_precision import NUMBER_TYPES, LowFigures, NumberType, fuses_experts
from planner.models.memory import CutMemory, Host, Precision, memory_bytes, offload_s, stage_memory_bytes
from planner.models.offload import (
    OFFLOAD_SETS,
    modules_beside_graphs,
    modules_with_input,
    offloaded_share,
    waits_of_step,
    waits_s,
)
from planner.models.optimizers import OPTIMIZERS, Optimizer
from planner.models.programs import (
    ALL_TO_ALL,
    CORES,
    DEEPEP,
    DEEPEP_BYTES_PER_S,
    PRECISION_AWARE,
    PROGRAMS,
    SUMMED_GROUPS,
    token_backend,
)
from planner.models.recomputation import MODULE_SETS, modules_of
from planner.models.tiers import ORDERS, Tier, tiers_of
from planner.models.transformer_interval import LAYER_PARTS, LayerFigures, interval_times, kind_times, mean_layer
from planner.models.transformer_step import (
    DeviceGroup,
    GroupSeconds,
    ReplicaClass,
    Step,
    group_seconds,
    joint_exchanges_s,
)
from planner.models.transformer_time import PARTS, iteration_times
from planner.problem import Problem
from planner.routes import routes_of
from planner.transformer import Transformer

Columns = Mapping[str, Ints]

OFFLOAD = "activation_offload"  # the part of a step that there is with activations on the host alone
_DTYPES = ("bf16", "fp16")  # that the matrix multiplications are fitted for
_HOST_LINK_BYTES_PER_S = 25e9  # PCIe 4.0 x16 as copies reach it, where the cluster does not say
_HOST_MEMORY_BYTES_PER_S = 200e9  # of a machine: eight channels of DDR4-3200
# A Grace beside each device, or beside two: NVLink-C2C of 900 GB/s both ways, and its memory's up to 512 GB/s (NVIDIA's
# datasheets of GH200, GB200 and GB300); as much of either is reached as of PCIe.
_C2C_BYTES_PER_S, _GRACE_BYTES_PER_S, _HOST_SHARE = 450e9, 512e9, 0.8
_DEVICES_OF_A_GRACE = {"gh200-96gb": 1, "gb200": 2, "gb300": 2}
# What columns that leave a decision out mean by it, of those that are said only off their default.
PLAIN_CODES = {
    name: row.code(row.default) for name, row in LAYOUT.items() if not row.is_shown_always and row.default is not None
}
_MOST_FEW = 2_000  # stages of all cuts of a setting together
_MOST_CELLS = 200_000  # stages in one array
_MOST_ROUNDS = 6  # of cuts of layers of both kinds
_ROUNDING = 1 + 1e-12
_STASH_RATIO = 1.2  # room for experts' tokens in a graph of a whole step, over the mean
_LESS_HELD = 0.01  # of a layer's activations; a set that saves less is not worth its name
_AWAY_FIRST = ("core_attn", "attn_proj", "qkv_linear", "attn_norm", "mlp_norm", "expert_fc1", "moe_act")
_LESS = 1e-12  # relative; less is rounding
# Each order of ranks, with the data ranks of several kinds of machines outermost.
_DATA_LAST = np.array(
    [
        index if order[-1] == "data" else ORDERS.index(("tensor", "context", "pipeline", "data"))
        for index, order in enumerate(ORDERS)
    ]
)


def why_not(problem: Problem) -> str | None:
    """Return why the family does not apply, or None."""
    if problem.dnn.transformer is None:
        return f"hybrid parallelism splits the blocks of a transformer, and {problem.dnn.name} is not known as one."
    if problem.training.dtype not in _DTYPES:
        return (
            f"hybrid parallelism is fitted to training in {' and '.join(_DTYPES)}, and dnn.dtype is "
            f"{problem.training.dtype}. Write dtype: bf16."
        )
    if not problem.transformer_rates:
        return "hybrid parallelism needs the fitted figures of transformers, which are missing."
    return None


def require(problem: Problem) -> None:
    """Raise InfeasibleError where the family does not apply."""
    if reason := why_not(problem):
        raise InfeasibleError(f"No plan fits: {reason}")


def launches_graphs(problem: Problem) -> bool:
    """Return whether kernels are captured in CUDA graphs: as asked, else with short products where the program can.

    The recipes that NVIDIA publishes for short products capture them; AMD's do not (``examples/megatron/configs`` of
    github.com/AMD-AGI/Primus).
    """
    asked, program = problem.calibration.cuda_graphs, PROGRAMS[problem.calibration.program]
    is_usual = problem.training.low is not None and not any(one.device.is_amd for one in problem.cluster.machine_groups)
    return program.has_cuda_graphs and (is_usual if asked is None else asked)


def costs_of(problem: Problem) -> list["GroupCost"]:
    """Return one cost for all machines, where they are equal; else one for each group, the pinned device's only.

    Raises
    ------
    InfeasibleError
        If the family does not apply.
    """
    require(problem)
    device = problem.fixed.get("device")
    groups = [one for one in problem.cluster.machine_groups if device in (None, one.device.name)]
    if not groups:
        raise InfeasibleError(f"No plan fits: there are no devices {device!r}, which fix.device asks for.")
    if len(groups) == len(problem.cluster.machine_groups) and problem.cluster.has_equal_machines:
        return [GroupCost(problem, problem.cluster, None, is_searched=True)]
    return [GroupCost(problem, problem.cluster.of_groups({one.name}), one.name, is_searched=True) for one in groups]


def cost_of_machines(problem: Problem, machines: str | None, batch: int | None = None) -> "GroupCost":
    """Return the cost of a group of machines by its name; None: all of them, which must be equal.

    Raises
    ------
    SpecError
        If there is no such group, or it is left open which one is meant.
    """
    if (reason := why_not(problem)) is not None:
        raise SpecError.of([Fault(field="configuration.hybrid", problem=reason)])
    names = [one.name for one in problem.cluster.machine_groups]
    if machines is None and problem.cluster.has_equal_machines:
        return GroupCost(problem, problem.cluster, None, batch)
    if machines not in names:
        what = "the machines differ, and it is not said which are meant." if machines is None else "there are none."
        mend = f"Write machines: with one of {', '.join(names)}."
        raise SpecError.of([Fault(field="configuration.hybrid.machines", value=str(machines), problem=what, mend=mend)])
    return GroupCost(problem, problem.cluster.of_groups({machines}), machines, batch)


# -- one machine group, and even cuts on it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupCost:
    """The figures of one machine group, and what even cuts cost on it.

    Attributes
    ----------
    cluster
        Of these machines alone.
    machines
        The name of their group, where the question has others.
    given_batch
        Samples of a step, where a configuration says so.
    opens_offload
        Whether a search may have activations wait on the host that no pin asks for.
    is_searched
        Whether layers are cut as a pin says, where none is given: in a search.
    """

    problem: Problem
    cluster: Cluster
    machines: str | None
    given_batch: int | None = None
    opens_offload: bool = False
    is_searched: bool = False

    @cached_property
    def cut(self) -> tuple[int, ...] | None:
        """The layers of every virtual stage that a search is told, where they are not dealt out evenly."""
        pinned = pinned_cut(self.problem) if self.is_searched else None
        if pinned is None or is_dealt_evenly(*pinned, self.problem.fixed.get("schedule")):
            return None
        return pinned[0]

    @property
    def may_offload(self) -> bool:
        """Whether activations may wait on the host: the program has it, and the link to the host is known."""
        is_known = self.group.host_link_bytes_per_s < inf or self.group.device.name in _DEVICES_OF_A_GRACE
        may_copy = not self.has_cuda_graphs or bool(modules_beside_graphs(self.transformer))
        return is_known and PROGRAMS[self.program].offloads_activations and may_copy

    @property
    def even(self) -> "HybridCost":
        """The cost of even cuts on these machines alone."""
        return HybridCost((self,), Placement.EVEN)

    @cached_property
    def transformer(self) -> Transformer:
        """The network."""
        found = self.problem.dnn.transformer
        assert found is not None, "asked by why_not"
        return found

    @cached_property
    def batch(self) -> int:
        """Samples of a step: the batch, or the largest that is allowed."""
        training = self.problem.training
        if self.given_batch is not None:
            return self.given_batch
        if training.fixed_batch_size is not None:
            return training.fixed_batch_size
        most = training.max_global_batch_size or 1
        each = training.batch_per_device
        return most if each is None else each * max(1, min(self.cluster.num_devices, most // each))

    @property
    def group(self) -> MachineGroup:
        """One of the groups, which are equal."""
        return self.cluster.machine_groups[0]

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """How the devices are joined."""
        inside, *outside = tiers_of(self.cluster)
        rates = self._network_rates
        if len(rates) < 2:
            return inside, *outside
        shares = [self.as_sold(rate, self.group) / rate for rate in rates]
        return inside, *(
            replace(tier, bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * share)
            for tier, share in zip(outside, shares, strict=True)
        )

    @cached_property
    def _network_rates(self) -> list[float]:
        """What a machine sends, as it is sold, by each level of switches that reaches a share of its own."""
        routes = routes_of(self.cluster)
        if routes.units is not None and len(routes.units) > 1:
            return [unit.machine_bytes_per_s for unit in routes.units]
        rate = routes.ring(self.cluster.num_machines).bandwidth_bytes_per_s
        # one machine sends to those of other groups alone
        return [rate if rate < inf else self.problem.cluster.own_link(self.group.name).bandwidth_bytes_per_s]

    @property
    def memory_limit_bytes(self) -> float:
        """What a device may hold."""
        return memory_limit_bytes(self.problem, self.group)

    @cached_property
    def is_calibrated(self) -> bool:
        """Whether the device is one whose shares were fitted."""
        return self.group.device.name in self.problem.transformer_rates["devices"]

    @cached_property
    def slowdown(self) -> float:
        """How many times as long as expected the device computes, where the question asks for the pessimistic end."""
        return float(self.problem.transformer_rates.get("slowdowns", {}).get(self.group.device.name, 1.0))

    @cached_property
    def rates(self) -> DeviceRates:
        """The device's figures."""
        device = self.group.device
        dtype, peaks = self.problem.training.dtype, device.peak_flop_per_s
        if dtype not in peaks:  # another rule says that the device cannot train so
            dtype = max((one for one in TRAINING_DTYPES if one in peaks), key=peaks.__getitem__, default=dtype)
        shares = device_shares(device, dtype, self.problem.transformer_rates)
        found = DeviceRates.of(device, dtype, {name: share / self.slowdown for name, share in shares.items()})
        low = self.problem.training.low
        if low is None:
            return found
        products = self.low_figures.products(
            device,
            found.product_efficiency,
            (low.name, low.recipe),
            program=self.program,
            has_fused_experts=self.has_fused_experts,
            wide_share=low.wide_layers / self.transformer.num_layers,
        )
        share = products.product_efficiency / self.slowdown ** (
            device.name in self.low_figures.shares[products.type.peak]
        )
        return replace(found, low=replace(products, product_efficiency=share))

    @property
    def program(self) -> str:
        """The name of the program that trains."""
        return self.problem.calibration.program

    @property
    def is_tpu(self) -> bool:
        """Whether the machines are slices of TPUs."""
        return self.group.device.kind == "tpu"

    @property
    def has_bf16_gradients(self) -> bool:
        """Whether the program is asked to keep and reduce gradients in bf16."""
        return self.problem.calibration.gradients == "bf16"

    @cached_property
    def software(self) -> Software:
        """What it takes; where gradients are kept in shards, every micro-batch must reduce them."""
        fields = {**self.problem.transformer_rates["software"][self.program], "reduces_every_microbatch": True}
        fields["reduces_copies_once"] = self.program in CORES and not self.is_tpu  # MaxText's sums are XLA's to place
        fields["summed_groups"] = SUMMED_GROUPS.get(self.program)
        backend, cut = (token_backend(self.group.device.name, self.program, tensor) for tensor in (1, 2))
        fields["sends_each_of_tensor"] = cut != backend
        if backend == ALL_TO_ALL:  # NCCL's, RCCL's or a TPU's, which sends a token to each of its experts
            fields["sends_once"] = False
        elif backend == DEEPEP:
            fields["exchanged_bytes_per_s"] = DEEPEP_BYTES_PER_S
        if self.has_bf16_gradients:
            fields["gradient_bytes"] = self.precision.gradient_bytes
        if (low := self.number_type) is not None and PROGRAMS[self.program].gathers_low:
            fields["weight_bytes"], fields["gathered_bytes"] = low.gathered_weight_bytes, low.gathered_bytes
        if self.has_cuda_graphs or low is not None:
            fields |= self.low_figures.launching(
                has_graphs=self.has_cuda_graphs, has_fused_experts=self.has_fused_experts, is_low=low is not None
            )
        found = Software(name=self.program, **{**fields, "launch_s": fields["launch_s"] * self.slowdown})
        found = found.stepped_by(self.optimizer)
        if low is None:
            return found
        return replace(found, optimizer_bytes=found.optimizer_bytes + low.weight_cast_bytes)

    @property
    def optimizer(self) -> Optimizer:
        """What steps the weights."""
        return OPTIMIZERS[self.problem.training.optimizer]

    @cached_property
    def constants(self) -> Constants:
        """What all devices have in common, with what the links of these machines reach."""
        found = Constants(**self.problem.transformer_rates["constants"])
        links = self.problem.calibration.links
        share, *others = (links.share_of_network(rate, self.group) for rate in self._network_rates)
        # experts' exchange alters as much, and at no level is wider than the wider of the two
        usual = found.exchange_efficiency
        most = (share / one * max(one, usual) for one in (share, *others))
        exchange = min(usual * (share / found.outside_efficiency), *most)
        inside = links.share_inside(self.group)
        return replace(found, outside_efficiency=share, exchange_efficiency=exchange, inside_efficiency=inside)

    def as_sold(self, joint_bytes_per_s: float, *machines: MachineGroup) -> float:
        """Return the rate of which the share that this group's network reaches is what one through others reaches."""
        share = self.problem.calibration.links.share_of_network(joint_bytes_per_s, *machines)
        return joint_bytes_per_s * (share / self.constants.outside_efficiency)

    @property
    def expert_imbalance(self) -> float:
        """Tokens of the rank whose experts have most, over the mean; 1 for a network without experts."""
        return self.problem.calibration.expert_imbalance if self.transformer.experts is not None else 1.0

    @property
    def held_imbalance(self) -> float:
        """Tokens that a device keeps room for in its experts, over the mean.

        A graph of a whole step does not wait for their number, and has a stash of a fixed size: 1.2 times the mean in
        the recipes that capture so (``moe_paged_stash_buffer_size_factor_cuda`` of Megatron-Bridge, pull request 4249).
        """
        is_stashed = self.problem.training.low is not None and self.has_fused_experts
        has_stash = is_stashed and self.transformer.experts is not None
        return max(self.expert_imbalance, _STASH_RATIO if has_stash else 1.0)

    @property
    def number_type(self) -> NumberType | None:
        """What products of eight or four bits take, where there are any."""
        low = self.problem.training.low
        return None if low is None else NUMBER_TYPES[low.name, low.recipe]

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether kernels are launched by CUDA graphs."""
        return launches_graphs(self.problem)

    @property
    def has_fused_experts(self) -> bool:
        """Whether experts' kernels are captured, too, and do what experts move besides."""
        return fuses_experts(self.transformer, has_graphs=self.has_cuda_graphs)

    @property
    def low_figures(self) -> LowFigures:
        """What is fitted of short products and of launching."""
        return LowFigures.of(self.problem.transformer_rates["low_precision"])

    @cached_property
    def precision(self) -> Precision:
        """Bytes of weights, gradients and state."""
        program, optimizer = PROGRAMS[self.program].in_type(self.number_type), self.optimizer
        found = (self.has_bf16_gradients and program.bf16_gradients) or program.precision
        return replace(
            found,
            spared_bytes=found.spared_bytes * (self.problem.training.optimizer in PRECISION_AWARE),
            optimizer_bytes=optimizer.state_bytes,
            end_bytes=optimizer.end_state_bytes - optimizer.state_bytes,
            has_whole_matrices=optimizer.needs_matrices,
        )

    @cached_property
    def kernels(self) -> Kernels:
        """What the program keeps of activations."""
        return PROGRAMS[self.program].in_type(self.number_type).kernels

    @property
    def reserve_bytes(self) -> float:
        """What a device keeps for itself."""
        has_experts = self.transformer.experts is not None
        return self.problem.calibration.transformer_reserve_of(self.group.device.memory_bytes, has_experts=has_experts)

    def layouts(self, columns: Mapping[str, object]) -> Layouts:
        """Return layouts of columns of numbers."""
        return layouts_of(columns, self.batch)

    def memory(self, layouts: Layouts, chunk_layers: Sequence[int] | None = None) -> Mapping[str, Floats]:
        """Return the bytes of each layout's fullest stage, by term, and their total; of given cuts, or even ones."""
        return memory_bytes(
            self.transformer,
            layouts,
            precision=self.precision,
            kernels=self.kernels,
            reserve_bytes=self.reserve_bytes,
            pipeline_layers=self.cut if chunk_layers is None else chunk_layers,
            expert_imbalance=self.held_imbalance,
        )

    def stage_memory(self, layout: Layouts, chunk_layers: Sequence[int] | None = None) -> Mapping[str, Floats]:
        """Return the bytes of every stage of one layout."""
        return stage_memory_bytes(
            self.transformer,
            layout,
            precision=self.precision,
            kernels=self.kernels,
            reserve_bytes=self.reserve_bytes,
            pipeline_layers=self.cut if chunk_layers is None else chunk_layers,
            expert_imbalance=self.held_imbalance,
        )

    def parts(
        self, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None, *, is_exact: bool = True
    ) -> dict[str, Floats]:
        """Return the seconds of a step by part, and their total, input left out; or with the schedule bounded."""
        chunk_layers = self.cut if chunk_layers is None else chunk_layers
        found = dict(iteration_times(self.figures, layouts, is_exact=is_exact, chunk_layers=chunk_layers))
        if np.any(layouts.offload_optimizer):
            offload_s = self.offload_s(layouts, chunk_layers)
            # One after the other, as Megatron-Core's ``HybridDeviceOptimizer`` steps what stays, and what does not.
            share = layouts.host_share
            found["optimizer"] = share * offload_s + (1 - share) * found["optimizer"]
            found["total"] = sum((found[name] for name in PARTS), np.zeros(len(layouts)))
        if np.any(layouts.offload_layers) or np.any(layouts.offload_modules):
            found[OFFLOAD] = self.activation_waits_s(layouts, chunk_layers)
            found["total"] = found["total"] + found[OFFLOAD]
        return found

    @cached_property
    def module_sets(self) -> Sequence[int]:
        """The sets of modules that are worth computing again."""
        barred = barred_modules(self.problem.training)
        return _useful_module_sets(self.figures, self.precision, self.kernels, self.held_imbalance, barred)

    @cached_property
    def figures(self) -> LayerFigures:
        """What layers' seconds rest on."""
        return LayerFigures(
            transformer=self.transformer,
            tiers=self.tiers,
            rates=self.rates,
            software=self.software,
            constants=self.constants,
            expert_imbalance=self.expert_imbalance,
        )

    def interval(self, layouts: Layouts) -> Mapping[str, Floats]:
        """Return the seconds of one micro-batch through all layers, by part, of both ends, and of one transfer."""
        return interval_times(self.figures, layouts)

    @property
    def host(self) -> Host:
        """A machine's host, as one of these devices sees it: over NVLink-C2C where it is a Grace, else over PCIe."""
        link, device = self.group.host_link_bytes_per_s, self.group.device.name
        if (sharing := _DEVICES_OF_A_GRACE.get(device)) is not None:
            usual_bytes_per_s = _HOST_SHARE * _C2C_BYTES_PER_S / sharing
            memory_bytes_per_s = _HOST_SHARE * _GRACE_BYTES_PER_S / sharing
        else:
            usual_bytes_per_s = _HOST_LINK_BYTES_PER_S
            memory_bytes_per_s = _HOST_MEMORY_BYTES_PER_S / self.group.devices_per_machine
        return Host(link_bytes_per_s=link if link < inf else usual_bytes_per_s, memory_bytes_per_s=memory_bytes_per_s)

    def offload_s(self, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None) -> Floats:
        """Return the seconds of an optimiser on the host."""
        chunk_layers = self.cut if chunk_layers is None else chunk_layers
        return offload_s(
            self.transformer,
            layouts,
            self.host,
            gradient_bytes=self.software.gradient_bytes,
            weight_bytes=self.precision.weight_bytes,
            optimizer_bytes=self.software.optimizer_bytes,
            chunk_layers=chunk_layers,
        )

    def activation_waits_s(self, layouts: Layouts, chunk_layers: Sequence[int] | Ints | None = None) -> Floats:
        """Return the seconds of a step in which devices wait for activations that go to the host, or come back."""
        chunk_layers = self.cut if chunk_layers is None else chunk_layers
        network, interval = self.transformer, self.interval(layouts)
        both_s, ahead_s = kind_times(network, interval)
        counts = network.kind_counts
        kept = [
            layer_bytes(
                network,
                kind,
                layouts,
                activation_bytes=self.precision.activation_bytes,
                kernels=self.kernels,
                expert_imbalance=self.expert_imbalance,
            )
            for kind in counts
        ]
        share = offloaded_share(layouts, np.full(len(layouts), network.num_layers))
        number = np.array([*counts.values()])[:, None]
        copied_bytes = (number * np.array([share * one.kept + one.away for one in kept])).sum(axis=0)
        forward_s, both = (number * ahead_s).sum(axis=0), (number * both_s).sum(axis=0)
        waits = waits_s(copied_bytes, self.host.link_bytes_per_s, forward_s, both - forward_s)
        cut = cut_of(network.num_layers, layouts, chunk_layers)
        most = np.maximum.reduce([cut.most, cut.most - cut.first_less, cut.most - cut.last_less]) / network.num_layers
        return np.where(copied_bytes > 0, waits_of_step(layouts, waits, most), 0.0)

    def seconds(self, layouts: Layouts) -> Floats:
        """Return the seconds of a step, input included."""
        total = self.parts(layouts)["total"]
        return np.asarray(total + self.stalls_s(layouts, total))

    def stalls_s(self, layouts: Layouts, busy_s: Floats) -> Floats:
        """Return how long devices wait for samples: one reader for each data rank."""
        values, back = np.unique(np.broadcast_to(layouts.data, len(layouts)), return_inverse=True)
        times = [self.input_time(int(one)) for one in values]
        strategy = Strategy(self.problem.calibration.strategy)
        if strategy.copies_ahead:
            return np.maximum(np.array([one.bound_s for one in times])[back] - busy_s, 0.0)
        return np.array([stall_s(times[at], float(busy), strategy) for at, busy in zip(back, busy_s, strict=True)])

    def input_time(self, readers: int) -> InputTime:
        """Return the input's seconds of a step where so many devices read an equal part of the batch each."""
        group = self.group
        num_machines = min(self.cluster.num_machines, readers)
        return input_time(
            group,
            Samples.of(self.problem),
            num_machines=num_machines,
            devices_per_machine=min(group.devices_per_machine, -(-readers // num_machines)),
            batch_per_device=self.batch / readers,
        )


# -- modules that are computed again by themselves ---------------------------------------------------------------------


@lru_cache(maxsize=64)
def _useful_module_sets(
    figures: LayerFigures, precision: Precision, kernels: Kernels, held_imbalance: float, barred: frozenset[str]
) -> tuple[int, ...]:
    """Return the sets of modules that save most bytes for their seconds, those of fewest seconds first.

    Of one sample on one device: the corners of the convex hull of all sets' (seconds, bytes), as a greedy choice by
    bytes a second goes through them. Sets that save next to nothing more are left out.
    """
    names = modules_of(figures.transformer)
    whole = {"moe"}.intersection(names)  # has what these have, too
    tried = [
        number
        for number, one in enumerate(MODULE_SETS)
        if {*one} <= {*names} - barred and not (whole & {*one} and {"moe_act", "shared_experts"} & {*one})
    ]
    if not tried:
        return ()
    sets = np.array([0, *tried])
    layouts = replace(
        Layouts.one(recompute=int(Recompute.SELECTIVE)).of(np.zeros(len(sets), dtype=np.int64)),
        recompute_modules=sets,
        recompute=np.where(sets > 0, int(Recompute.SELECTIVE), int(Recompute.NONE)),
    )
    interval = interval_times(figures, layouts)
    added_s = sum(interval[name].sum(axis=0) for name in LAYER_PARTS)
    held = memory_bytes(
        figures.transformer, layouts, precision=precision, kernels=kernels, expert_imbalance=held_imbalance
    )["activations"]
    found, at = [], 0
    while (saves := np.flatnonzero(held < held[at] * (1 - _LESS_HELD))).size:
        longer_s = np.maximum(added_s[saves] - added_s[at], 0.0)
        at = int(saves[np.argmin(longer_s / (held[at] - held[saves]))])
        found.append(int(sets[at]))
    return tuple(found)


def useful_offload_sets(cost: GroupCost) -> list[int]:
    """Return sets of modules whose inputs may wait on the host, each with more of them than the one before.

    Only bytes count, since copies of as many bytes take as long, whichever module's they are: attention's modules come
    first, so that experts may be computed again beside them.
    """
    of = modules_beside_graphs if cost.has_cuda_graphs else modules_with_input
    has, found, chosen = of(cost.transformer), [], set[str]()
    for name in _AWAY_FIRST:
        chosen |= {name} & {*has}
        found += [OFFLOAD_SETS.index(tuple(one for one in has if one in chosen))] * (name in has)
    return found


# -- all cuts of few ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4_096)
def has_few_cuts(layers: int, stages: int) -> bool:
    """Return whether all cuts of so many layers are tried."""
    if 1 < stages < layers and stages * (layers - 1) > _MOST_FEW:  # there is a cut for each place of one boundary
        return False
    return 1 < stages <= layers and stages * comb(layers - 1, stages - 1) <= _MOST_FEW


@lru_cache(maxsize=64)
def all_cuts(layers: int, stages: int) -> Ints:
    """Return all cuts of layers into stages of one or more, shape (stages, cuts)."""
    number = comb(layers - 1, stages - 1)
    ends = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64).reshape(number, stages - 1)
    return np.diff(ends, axis=1, prepend=0, append=layers).T


def cut_columns(layers: Ints) -> dict[str, Ints]:
    """Return cuts of shape (p, n) as columns."""
    return {f"layers_{stage}": row for stage, row in enumerate(layers)}


def _cut_of(columns: Columns) -> Ints | None:
    """Return the cuts that columns hold, shape (p, n); None where they hold none."""
    names = [name for name in columns if name.startswith("layers_")]
    return np.array([columns[f"layers_{stage}"] for stage in range(len(names))]) if names else None


def _each_cut(columns: Columns, stages: Ints, cost: "HybridCost") -> Iterator[tuple[Ints, Ints, dict[str, Ints]]]:
    """Yield some layouts with few cuts, of as many stages each: their places, the cuts, and each with each cut."""
    for number in np.unique(stages).tolist():
        if not has_few_cuts(cost.parted_layers, number):
            continue
        cuts, places = all_cuts(cost.parted_layers, number), np.flatnonzero(stages == number)
        cuts = cuts + (np.arange(number) == number - 1)[:, None] * (cost.transformer.num_layers - cost.parted_layers)
        for some in np.array_split(places, -(-len(places) * cuts.size // _MOST_CELLS)):
            each = {name: np.repeat(column[some], cuts.shape[1]) for name, column in columns.items()}
            yield some, cuts, {**each, **cut_columns(np.tile(cuts, (1, len(some))))}


# -- any cut on any groups ---------------------------------------------------------------------------------------------


class Placement(StrEnum):
    """How a layout lies on its machine groups: see the module."""

    EVEN = "even"
    STAGES = "stages"
    REPLICAS = "replicas"


@dataclass(frozen=True, kw_only=True, eq=False)
class CutLayouts:
    """Layouts with their layers cut.

    Attributes
    ----------
    step
        With these layers.
    can
        Whether all fit, shape (n,).
    numbers
        Micro-batches of one replica of each group, shape (groups, n); None but for replicas.
    """

    step: Step
    can: Bools
    numbers: Ints | None = None


@dataclass(frozen=True)
class HybridCost:
    """What layouts cost on some machine groups."""

    groups: tuple[GroupCost, ...]
    placement: Placement

    @classmethod
    def of(cls, problem: Problem, chosen: HybridConfiguration) -> "HybridCost":
        """Return the cost of the groups on which a configuration stands."""
        cut = Placement.REPLICAS if chosen.replicas else Placement.STAGES
        placement = cut if chosen.is_plain_cut else Placement.EVEN
        names = chosen.groups or (None,)
        return cls(tuple(cost_of_machines(problem, name, chosen.global_batch_size) for name in names), placement)

    @property
    def first(self) -> GroupCost:
        """The cost of the first group, for what all share."""
        return self.groups[0]

    @property
    def problem(self) -> Problem:
        """The question."""
        return self.first.problem

    @property
    def transformer(self) -> Transformer:
        """The network."""
        return self.first.transformer

    @property
    def parted_layers(self) -> int:
        """Layers among which stages without chunks are cut: depths of multi-token prediction, the last ones, are one.

        So the last stage has them all, as :func:`planner.decisions.has_depths_together` asks: it is never empty.
        """
        return self.transformer.num_layers - max(self.transformer.num_mtp_layers - 1, 0)

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.first.batch

    @property
    def names(self) -> list[str | None]:
        """Names of the groups; None of a single one, where all machines are equal."""
        return [one.machines for one in self.groups]

    @property
    def is_even(self) -> bool:
        """Whether stages hold equal layers."""
        return self.placement is Placement.EVEN

    @property
    def has_replicas(self) -> bool:
        """Whether each group has whole replicas, rather than stages."""
        return self.placement is Placement.REPLICAS

    @cached_property
    def part_names(self) -> tuple[str, ...]:
        """Of the columns that hold the stages of each group, or its replicas."""
        if self.is_even:
            return ("pipeline",)
        return tuple(f"{'data' if self.has_replicas else 'stages'}_{index}" for index in range(len(self.groups)))

    @cached_property
    def limits_bytes(self) -> Floats:
        """What a device of each group may hold."""
        return np.array([one.memory_limit_bytes for one in self.groups])

    @cached_property
    def memory(self) -> CutMemory:
        """Bytes of stages of any cut."""
        return CutMemory(
            transformer=self.transformer,
            precision=self.first.precision,
            kernels=self.first.kernels,
            reserve_bytes=max(one.reserve_bytes for one in self.groups),
            expert_imbalance=self.first.held_imbalance,
        )

    @cached_property
    def _device_groups(self) -> tuple[DeviceGroup, ...]:
        """The groups as the models have them: between groups the narrowest link of a ring through all counts."""
        if len(self.groups) == 1:
            return (DeviceGroup(tiers=self.first.tiers, rates=self.first.rates),)
        joint = self.problem.cluster.of_groups({name for name in self.names if name is not None})
        link, machines = routes_of(joint).ring(joint.num_machines), joint.machine_groups
        return tuple(
            DeviceGroup(
                tiers=one.tiers,
                rates=one.rates,
                between_bytes_per_s=one.as_sold(link.bandwidth_bytes_per_s, *machines),
                between_latency_s=link.latency_s,
            )
            for one in self.groups
        )

    def parts_of(self, columns: Columns) -> Ints:
        """Return the stages of each group, or its replicas, shape (groups, n)."""
        return np.array([columns[name] for name in self.part_names])

    def layouts(self, columns: Columns, index: int | None = None) -> Layouts:
        """Return layouts of columns: all stages and replicas, or those that stand on one group."""
        if self.is_even:
            return layouts_of(columns, self.batch)
        parts = self.parts_of(columns)
        own = parts.sum(axis=0) if index is None else parts[index]
        same = {name: np.full(len(own), value) for name, value in {**PLAIN_CODES, **CODES_OF_CUTS}.items()}
        return layouts_of({**same, **columns, "data" if self.has_replicas else "pipeline": own}, self.batch)

    def group_seconds(self, columns: Columns) -> list[GroupSeconds]:
        """Return the seconds of a micro-batch on each group."""
        return [self.seconds_on(columns, index) for index in range(len(self.groups))]

    def seconds_on(self, columns: Columns, index: int) -> GroupSeconds:
        """Return the seconds of a micro-batch on one group."""
        one, own = self.groups[index], self.layouts(columns, index)
        return group_seconds(
            self.transformer,
            own,
            self.joint(columns) if self.has_replicas else own,
            self._device_groups[index],
            software=one.software,
            constants=one.constants,
            expert_imbalance=one.expert_imbalance,
        )

    def joint(self, columns: Columns) -> Layouts:
        """Return the replicas of all groups: each is on one kind of machines, which no order mixes."""
        whole = self.layouts(columns)
        return replace(whole, order=_DATA_LAST[whole.order])

    def joint_exchanges_s(self, joint: Layouts, index: int) -> tuple[Floats, Floats, Floats]:
        """Return what the replicas of all groups exchange, as devices of one group do, and its optimiser's step."""
        return joint_exchanges_s(self.groups[index].figures, self._device_groups[index], joint)

    def stage_groups(self, columns: Columns, num_stages: int) -> Ints:
        """Return the index of each stage's group, shape (p, n); 0 for whole replicas."""
        found = np.zeros((num_stages, len(columns["tensor"])), dtype=np.int64)
        if self.has_replicas:
            return found
        for end in np.cumsum(self.parts_of(columns), axis=0)[:-1]:
            found = found + (np.arange(num_stages)[:, None] >= end)
        return found

    def most_layers(self, columns: Columns, stage_groups: Ints, *, is_certain: bool = False) -> Ints:
        """Return how many layers fit on each stage, shape (p, n): that no cut has more of, or of any cut."""
        layouts, limits = self._held_by(columns, stage_groups)
        return self.memory.most_layers(layouts, len(stage_groups), limits, is_certain=is_certain)

    def _held_by(self, columns: Columns, stage_groups: Ints) -> tuple[Layouts, Floats]:
        """Return layouts with as many micro-batches as count in memory, and what a device of each stage may hold."""
        layouts = self.layouts(columns)
        if self.has_replicas:  # they may do as many micro-batches as a pipeline holds, on the smallest device
            number = np.maximum(layouts.num_microbatches, layouts.pipeline)
            return replace(layouts, num_microbatches=number), np.full(stage_groups.shape, self.limits_bytes.min())
        return layouts, self.limits_bytes[stage_groups]

    def _fits(self, columns: Columns, step: Step) -> Bools:
        """Return whether every stage holds its layers; shape (n,)."""
        layouts, limits = self._held_by(columns, step.classes[0].groups)
        held = self.memory.held_bytes(layouts, step.layers)
        return np.asarray((~step.is_there | ((step.layers >= 1) & (held <= limits * _ROUNDING))).all(axis=0))

    # -- the cut -------------------------------------------------------------------------------------------------------

    def step(self, columns: Columns, layers: Ints | None = None, numbers: Ints | None = None) -> Step:
        """Return the step of layouts with layers, and for whole replicas the micro-batches of each group."""
        whole, groups = self.layouts(columns), self.group_seconds(columns)
        on = self.stage_groups(columns, int(whole.pipeline.max(initial=1)))
        classes = [ReplicaClass(groups=on, num_microbatches=whole.num_microbatches)]
        if self.has_replicas:
            counts = np.ones((len(self.groups), len(whole)), dtype=np.int64) if numbers is None else numbers
            classes = [
                ReplicaClass(groups=np.full_like(on, index), num_microbatches=row) for index, row in enumerate(counts)
            ]
        return Step(
            layouts=whole, layers=np.zeros_like(on) if layers is None else layers, groups=groups, classes=classes
        )

    def _cut_as(self, columns: Columns, layers: Ints) -> CutLayouts:
        """Return layouts with given cuts."""
        step = self.step(columns, layers)
        has_depths = (~step.is_last | (step.layers >= self.transformer.num_mtp_layers)).all(axis=0)
        return CutLayouts(step=step, can=self._fits(columns, step) & self._is_own(step) & has_depths)

    def _cut_balanced(self, columns: Columns, known: Ints | None = None) -> CutLayouts:
        """Return layouts cut so that the slowest stage is as quick as can be, as far as memory allows.

        ``known``: how many layers fit on each stage, as :meth:`most_layers` has it, shape (p, n).
        """
        bare = self.step(columns)
        own = ReplicaClass(groups=bare.classes[0].groups, num_microbatches=bare.layouts.num_microbatches)
        if self.has_replicas:  # the group whose layers are slowest
            slowest = np.argmax([mean_layer(self.transformer, one.layer_s) for one in bare.groups], axis=0)
            own = replace(own, groups=np.asarray(np.broadcast_to(slowest, own.groups.shape)))
        down, up = bare.sends_s(own)
        layer_s, fixed_s = bare.of_group(own, "layer_s"), bare.ends_s(own) + (down + up)
        kinds, experts = self.transformer.layer_kinds, self.transformer.experts
        is_mixed, more = len(self.transformer.kind_counts) > 1, self.transformer.num_layers - self.parted_layers
        fewest = bare.is_there + more * bare.is_last
        # A layer more or less is one behind the first dense ones, by their mean; what else a stage's own layers take
        # more or less is as fixed as its ends, for the cut found before.
        behind = kinds[experts.num_dense_first if experts is not None and self.transformer.pattern is None else 0 :]
        counts = np.array([behind.count(kind) for kind in self.transformer.kind_counts])
        mean_s = (layer_s * (counts / counts.sum())[:, None, None]).sum(axis=0)

        def balanced(*, is_certain: bool) -> tuple[Ints, Bools]:
            most = (
                self.most_layers(columns, own.groups, is_certain=is_certain) if is_certain or known is None else known
            )

            def cut(more_s: Floats | float) -> tuple[Ints, Bools]:
                total = self.transformer.num_layers
                return balanced_layers(mean_s, fixed_s + more_s, most, fewest, own.groups, total)

            best, can = cut(0.0)
            best_s, layers, before = np.full(len(can), inf), best, np.zeros_like(best)
            for _ in range(_MOST_ROUNDS if is_mixed else 0):
                if (layers == before).all():
                    break
                held_s = (layers_by_kind(self.transformer, layers) * layer_s).sum(axis=0)
                slowest_s = (held_s + fixed_s * bare.is_there).max(axis=0)
                is_better = slowest_s < best_s * (1 - _LESS)
                best, best_s = np.where(is_better, layers, best), np.where(is_better, slowest_s, best_s)
                before, (layers, _) = layers, cut(held_s - layers * mean_s)
            return best, can

        layers, can = balanced(is_certain=False)
        if is_mixed:  # as many as may fit may yet not be those that do
            fits = can & self._fits(columns, replace(bare, layers=layers))
            if not fits[can].all():
                certain, is_any = balanced(is_certain=True)
                is_any &= self._fits(columns, replace(bare, layers=certain))
                layers, can = np.where(fits, layers, certain), fits | is_any
        step = replace(bare, layers=layers)
        return CutLayouts(step=step, can=can & self._is_own(step))

    def _given_cut(self, columns: Columns) -> Ints | None:
        """Return the cuts that columns hold, else the one that is pinned, shape (p, n); None where it is open."""
        pinned = pinned_cut(self.problem)
        if (given := _cut_of(columns)) is not None or pinned is None or not self.first.is_searched:
            return given
        return np.repeat(np.array(pinned[0])[:, None], len(columns["tensor"]), axis=1)

    def _is_own(self, step: Step) -> Bools:
        """Return whether a cut is none of those that even layouts on one group have, which are priced by themselves."""
        if len(self.groups) > 1:
            return np.ones(len(step.layouts), dtype=bool)
        return np.asarray((step.is_there & (step.layers != step.layers[0])).any(axis=0))

    def cut(self, columns: Columns) -> CutLayouts:
        """Return layouts cut as columns say, else the best of few cuts, else for the quickest slowest stage.

        What does not fit is not taken. Of equal cuts the first.
        """
        if (given := self._given_cut(columns)) is not None:
            return self._cut_as(columns, given)
        found = self._cut_balanced(columns)
        if self.has_replicas:
            return found
        layers, is_any = found.step.layers.copy(), False
        for some, cuts, each in _each_cut(columns, found.step.layouts.pipeline, self):
            bounds = self.bound_s(each).reshape(len(some), -1)
            seconds = np.full(bounds.shape, inf)
            hopeful = np.isfinite(bounds) & (bounds == bounds.min(axis=1, keepdims=True))
            for _ in range(2):  # the most hopeful cut, and then those that may be better still
                at = np.flatnonzero(hopeful)
                if len(at):
                    seconds.flat[at] = self.seconds({name: column[at] for name, column in each.items()})
                hopeful = (bounds < seconds.min(axis=1, keepdims=True)) & np.isinf(seconds)
            layers[:, some] = 0
            layers[: len(cuts), some] = cuts[:, seconds.argmin(axis=1)]
            is_any = True
        return self._cut_as(columns, layers) if is_any else found

    def finished(self, columns: Columns) -> CutLayouts:
        """Return layouts with layers and, for whole replicas, micro-batches chosen."""
        chosen = self.cut(columns)
        if not self.has_replicas:
            return chosen
        starts, each = self._lines(chosen.step)
        parts, numbers = self.parts_of(columns), np.zeros((len(self.groups), len(chosen.can)), dtype=np.int64)
        for index, size in enumerate(columns["microbatch"].tolist()):
            counts, start_s, each_s = (array[:, index].tolist() for array in (parts, starts, each))
            numbers[:, index] = share_microbatches(counts, start_s, each_s, self.batch // size) or 0
        classes = [
            replace(one, num_microbatches=row)
            for one, row in zip(chosen.step.classes, np.maximum(numbers, 1), strict=True)
        ]
        step = replace(chosen.step, classes=classes)
        return CutLayouts(step=step, can=chosen.can & (numbers.min(axis=0) > 0), numbers=numbers)

    def _lines(self, step: Step) -> tuple[Floats, Floats]:
        """Return ``a`` and ``x``: m micro-batches take each class ``a + m x`` at least; shape (classes, n).

        The path that passes all stages once and else dwells on the slowest one, i of p: ``X + (m - w) x + (w - 1)
        max(f, b)`` with ``w = p - i``.
        """
        starts, each, columns = [], [], np.arange(len(step.layouts))
        for one in step.classes:
            forward, backward = step.passes_s(one)
            both = forward + backward
            slowest = np.argmax(both, axis=0)
            x, longer = both[slowest, columns], np.maximum(forward, backward)[slowest, columns]
            warm_up = step.layouts.pipeline - slowest
            starts.append(both.sum(axis=0) - warm_up * x + (warm_up - 1) * longer)
            each.append(x)
        return np.array(starts), np.array(each)

    # -- seconds -------------------------------------------------------------------------------------------------------

    def seconds(self, columns: Columns) -> Floats:
        """Return the seconds of layouts, with what is open chosen, input included; infinite where a cut cannot fit."""
        if self.is_even:
            return self.first.seconds(self.layouts(columns))
        chosen = self.finished(columns)
        total_s = chosen.step.total_s
        return np.where(chosen.can, total_s + self.stalls_s(columns, total_s, chosen.numbers), inf)

    def stalls_s(self, columns: Columns, busy_s: Floats, numbers: Ints | None = None) -> Floats:
        """Return how long devices wait for samples; the first stage of every replica reads them."""
        if not self.has_replicas:
            return self.first.stalls_s(self.layouts(columns), busy_s)
        found, parts = np.zeros(len(busy_s)), self.parts_of(columns)
        for index, one in enumerate(self.groups):
            own = self.layouts(columns, index)
            for at in range(len(busy_s)):
                samples = int(parts[index, at] * (0 if numbers is None else numbers[index, at]) * own.microbatch[at])
                reading = replace(one, given_batch=max(samples, 1))
                found[at] = max(found[at], float(reading.stalls_s(own.of(slice(at, at + 1)), busy_s[at : at + 1])[0]))
        return found

    def bound_s(self, columns: Columns) -> Floats:
        """Return seconds that layouts with a cut are not under; infinite where they do not fit."""
        found = np.full(len(columns["tensor"]), inf)
        pipeline = self.layouts(columns).pipeline
        on = self.stage_groups(columns, int(pipeline.max(initial=1)))
        is_there = np.arange(len(on))[:, None] < pipeline
        known = self.most_layers(columns, on)
        most = np.where(is_there, known, 0)
        has_room = ((most >= 1) | ~is_there).all(axis=0) & (most.sum(axis=0) >= self.transformer.num_layers)
        fits = np.flatnonzero(has_room)
        if len(fits):
            longest = int(pipeline[fits].max())
            found[fits] = self._bound_s({name: column[fits] for name, column in columns.items()}, known[:longest, fits])
        return found

    def _bound_s(self, columns: Columns, known: Ints) -> Floats:
        """Return the same of layouts that fit; ``known``: as of :meth:`_cut_balanced`."""
        given = self._given_cut(columns)
        chosen = self._cut_balanced(columns, known) if given is None else self._cut_as(columns, given)
        if self.has_replicas:
            starts, each = self._lines(chosen.step)
            total = (self.batch // columns["microbatch"]).astype(np.float64)
            bound = shared_bound_s(self.parts_of(columns).astype(np.float64), starts, each, total)
            return np.where(chosen.can, bound + chosen.step.tail_s.max(axis=0), inf)
        found = np.where(chosen.can, chosen.step.bound_s, inf)
        if given is None:
            for some, _, cuts in _each_cut(columns, chosen.step.layouts.pipeline, self):
                found[some] = self.bound_s(cuts).reshape(len(some), -1).min(axis=1)
        return np.asarray(found)
