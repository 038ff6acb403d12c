"""The cost of an all-reduce configuration on unlike devices: several kinds that share one batch unequally.

All devices of a group are equal and have the same share, some of them one sample less; the share of a group is the
largest. Every device computes its share; a gradient is sent when the last kind of device has it; all devices update
when the last transfer has ended, and the slowest update ends the iteration (`planner.models.data_parallel.Kinds`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from planner import channel
from planner.channel import FusionSchedule
from planner.errors import SpecError
from planner.families.all_reduce.configuration import AllReduceConfiguration, GroupShare
from planner.families.all_reduce.cost import communication_of, fusion_groups_of, schedule_rows, unknown_algorithm
from planner.families.all_reduce.forms import Ints
from planner.families.all_reduce.mixed_parts import MixedParts
from planner.models.collectives import cheapest_of
from planner.models.compression import Compression
from planner.models.data_parallel import Kinds, exposed_s
from planner.models.input import InputTime, stall_s
from planner.models.overlap import csf
from planner.plan import Prediction
from planner.problem import Problem

__all__ = ["MixedCost"]


class MixedCost(MixedParts):
    """What configurations of one question cost on given groups, so many devices of each machine of a group."""

    @classmethod
    def of(cls, problem: Problem, groups: Sequence[GroupShare]) -> "MixedCost":
        """Return the cost on the groups of a configuration."""
        return cls(problem, [one.name for one in groups], [one.devices_per_machine for one in groups])

    def configuration(
        self,
        machines: Sequence[int],
        shares: Sequence[int],
        global_batch_size: int,
        *,
        steps: Sequence[int] | None = None,
        ends: Sequence[int] = (),
        compression: Compression | None = None,
    ) -> AllReduceConfiguration:
        """Return the configuration of the groups' machines and shares; each fused group by its cheapest algorithm."""
        if steps is None:
            steps = self.kinds.microbatches(np.array([shares], dtype=np.int64))[0].tolist()
        rows = zip(self.names, machines, self.devices.tolist(), shares, steps, strict=True)
        groups = tuple(
            GroupShare(
                name=name,
                num_machines=number,
                devices_per_machine=devices,
                batch_per_device=share,
                gradient_accumulation_steps=step,
            )
            for name, number, devices, share, step in rows
        )
        num_machines, num_devices = sum(machines), sum(one.num_devices for one in groups)
        kept = 1.0 if compression is None else float(compression.kept)
        costs = self.transfer_costs(num_machines, num_devices)
        return AllReduceConfiguration(
            num_devices=num_devices,
            num_machines=num_machines,
            devices_per_machine=int(self.devices.max()),
            global_batch_size=global_batch_size,
            gradient_accumulation_steps=max(steps),
            fusion_groups=fusion_groups_of(self.gradients, ends, costs, kept=kept) if ends else (),
            groups=groups,
            compression=compression,
        )

    def kinds_of(self, configuration: AllReduceConfiguration) -> tuple[Kinds, Ints]:
        """Return the devices with the micro-batches of a configuration, and the shares as one row."""
        rows = {one.name: one for one in configuration.groups}
        steps = np.array([rows[name].gradient_accumulation_steps for name in self.names], dtype=np.int64)
        shares = np.array([[rows[name].batch_per_device for name in self.names]], dtype=np.int64)
        return replace(self.kinds, num_microbatches=steps), shares

    def straggler(self, configuration: AllReduceConfiguration) -> int:
        """Return the index of the group that computes longest."""
        kinds, shares = self.kinds_of(configuration)
        return int(np.argmax(kinds.computed_s(shares)[0]))

    def schedule(self, configuration: AllReduceConfiguration) -> FusionSchedule | None:
        """Return when every fused group is sent, from the start of the straggler's last backward pass."""
        if not configuration.fusion_groups or configuration.num_devices == 1:
            return None
        kinds, shares = self.kinds_of(configuration)
        slowest = self.straggler(configuration)
        origin_s = kinds.computed_s(shares)[0, slowest] - self._last_backward_s(configuration)
        costs = self.transfer_costs(configuration.num_machines, configuration.num_devices)
        for group in configuration.fusion_groups:
            if group.algorithm not in costs:
                raise SpecError.of([unknown_algorithm(group.algorithm, costs, configuration.num_devices)])
        kept = 1.0 if configuration.compression is None else float(configuration.compression.kept)
        seconds = [
            float(costs[group.algorithm](np.array([group.size_bytes * kept]))[0])
            for group in configuration.fusion_groups
        ]
        ends = np.cumsum([len(group.tensors) for group in configuration.fusion_groups]) - 1
        fitted = self.problem.calibration
        return channel.schedule(
            tuple(ends.tolist()),
            kinds.ready_s(shares)[0] - origin_s,
            self.gradients.size_bytes * kept,
            lambda _: np.array(seconds),
            wait=fitted.wait,
            timeout_s=fitted.timeout_s,
        )

    def _last_backward_s(self, configuration: AllReduceConfiguration) -> float:
        """Return the seconds of the straggler's last backward pass."""
        kinds, shares = self.kinds_of(configuration)
        slowest = self.straggler(configuration)
        return float(kinds.backward_s[slowest] * kinds.last_samples(shares)[0, slowest])

    def predict(self, configuration: AllReduceConfiguration) -> Prediction:
        """Return what a configuration costs.

        ``iteration = max(end of the last transfer, computation of each kind) + update``, and no less than the input of
        any group. The breakdown is that of the straggler, the group that computes longest: what other devices wait for
        it is no term of its own.
        """
        problem, (kinds, shares) = self.problem, self.kinds_of(configuration)
        slowest, schedule = self.straggler(configuration), self.schedule(configuration)
        computed_s = kinds.computed_s(shares)[0]
        compression = configuration.compression
        compression_s = 0.0 if compression is None else float(compression.time_s)
        negotiate_s, last_backward_s = problem.calibration.negotiate_s, self._last_backward_s(configuration)
        exposed: Mapping[str, float] = dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
        if schedule is not None:
            exposed = exposed_s(schedule, backward_end_s=last_backward_s, negotiate_s=negotiate_s)
        sent_s = float(computed_s[slowest]) + sum(exposed.values())
        end_s = float((computed_s + kinds.update_s).max())
        if schedule is not None:
            finish_s = float(computed_s[slowest]) - last_backward_s + schedule.finish_s
            end_s = max(end_s, finish_s + float(kinds.update_s.max()))
        busy_s = compression_s + end_s
        inputs = self.inputs(configuration)
        iteration_s = busy_s + max(stall_s(read, busy_s, self.strategy) for read in inputs)
        share = int(shares[0, slowest])
        breakdown = {
            "forward": float(kinds.forward_s[slowest]) * share,
            "backward": float(kinds.backward_s[slowest]) * share,
        }
        breakdown |= {"compression": compression_s} if compression is not None else {}
        breakdown |= {f"exposed_{name}": seconds for name, seconds in exposed.items()}
        breakdown |= {"update": max(0.0, end_s - sent_s), "input_stall": iteration_s - busy_s}
        samples = problem.training.dataset_samples
        epoch_s = None if samples is None else iteration_s * samples / configuration.global_batch_size
        epochs = problem.training.epochs
        kept = 1.0 if compression is None else float(compression.kept)
        costs = list(self.transfer_costs(configuration.num_machines, configuration.num_devices).values())
        one_transfer_s = float(cheapest_of(costs)(np.array([self.gradients.total_bytes * kept]))[0])
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None if epoch_s is None or epochs is None else epoch_s * epochs,
            breakdown_s=breakdown,
            communication_s=communication_of(schedule, negotiate_s),
            scaling_factor=self._alone_s(configuration) / iteration_s,
            communication_to_computation=one_transfer_s / computed_s[slowest] if computed_s[slowest] else float("inf"),
            memory_bytes=self._fullest_bytes(configuration),
            details=self._details(configuration, schedule, inputs, one_transfer_s),
        )

    def inputs(self, configuration: AllReduceConfiguration) -> list[InputTime]:
        """Return the input of one iteration, group by group."""
        shares = {one.name: one for one in configuration.groups}
        total = min(
            sum(one.num_devices * one.batch_per_device for one in configuration.groups), configuration.global_batch_size
        )
        rates = self.input_rates(configuration.num_machines)
        return [rate.at(shares[name].batch_per_device, total) for name, rate in zip(self.names, rates, strict=True)]

    def _alone_s(self, configuration: AllReduceConfiguration) -> float:
        """Return the iteration if every device worked at the rate that it has alone, without waiting for another."""
        kinds, shares = self.kinds_of(configuration)
        alone_s = kinds.computed_s(shares)[0] + kinds.update_s
        samples, rate = 0, 0.0
        for index, one in enumerate(self._rows(configuration)):
            share = one.batch_per_device
            input_alone = self.rates_of(self.groups[index], 1, 1).at(share, share)
            busy_s = float(alone_s[index])
            seconds = busy_s + stall_s(input_alone, busy_s, self.strategy)
            samples += one.num_devices * one.batch_per_device
            rate += one.num_devices * one.batch_per_device / seconds
        return samples / rate

    def _rows(self, configuration: AllReduceConfiguration) -> list[GroupShare]:
        """Return a configuration's groups in the order of this cost's."""
        rows = {one.name: one for one in configuration.groups}
        return [rows[name] for name in self.names]

    def memory_bytes(self, configuration: AllReduceConfiguration) -> list[dict[str, float]]:
        """Return the bytes on a device of each group, term by term, with what it may hold."""
        return [
            self.memory.terms_bytes(
                ceil(one.batch_per_device / one.gradient_accumulation_steps),
                limit_bytes=self.memory_limit_bytes(group),
            )
            for group, one in zip(self.groups, self._rows(configuration), strict=True)
        ]

    def _fullest_bytes(self, configuration: AllReduceConfiguration) -> dict[str, float]:
        """Return the bytes on the device that is fullest for what it may hold; of equals, the one with most."""
        return max(self.memory_bytes(configuration), key=lambda one: (one["total"] / one["limit"], one["total"]))

    def _details(
        self,
        configuration: AllReduceConfiguration,
        schedule: FusionSchedule | None,
        inputs: Sequence[InputTime],
        one_transfer_s: float,
    ) -> dict[str, Any]:
        """Return the family's own figures."""
        kinds, shares = self.kinds_of(configuration)
        computed_s = kinds.computed_s(shares)[0].tolist()
        longest = max(inputs, key=lambda one: one.bound_s)
        rows = [] if schedule is None else schedule_rows(schedule)
        slowest = self.straggler(configuration)
        groups = {
            one.name: {
                "num_devices": one.num_devices,
                "batch_per_device": one.batch_per_device,
                "gradient_accumulation_steps": one.gradient_accumulation_steps,
                "computation_s": seconds,
                "memory_bytes": memory["total"],
                "input_s": {"read": read.read_s, "decode": read.decode_s, "copy": read.copy_s},
            }
            for one, seconds, memory, read in zip(
                self._rows(configuration), computed_s, self.memory_bytes(configuration), inputs, strict=True
            )
        }
        return {
            "batch_per_device": max(one.batch_per_device for one in configuration.groups),
            "num_all_reduces": len(rows),
            "gradient_bytes": self.gradients.total_bytes,
            "scaling_factor_without_overlap": csf(computation_s=computed_s[slowest], communication_s=one_transfer_s),
            "last_backward_s": self._last_backward_s(configuration),
            "input_s": {"read": longest.read_s, "decode": longest.decode_s, "copy": longest.copy_s},
            "straggler": self.names[slowest],
            "groups": groups,
            "schedule": rows,
        }
