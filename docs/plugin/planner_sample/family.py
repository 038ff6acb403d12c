"""A family with a solver of its own: data parallelism that sends all gradients at once, after the backward pass.

Choice: the number of machines, of one group of equal ones. Cost: the pass of a device's share of the batch, then one
all-reduce by halving and doubling. Solver: every number of machines is tried, so the best one is proven.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from planner.cluster import Cluster, MachineGroup
from planner.constraints import memory_limit_bytes
from planner.errors import InfeasibleError, NoAnswerError, SpecError
from planner.families.answer import TOO_SHORT, Searched, alternative_of, plan_of
from planner.families.parsing import check_inner_links
from planner.families.timeline_drawing import Drawing
from planner.models.activations import data_parallel_memory
from planner.models.communication import Participants
from planner.models.memory import Precision
from planner.networks import computation_bound
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.sections import FamilyView, Role, replicas_on
from planner.timeline import Timeline, repeated
from planner.used_machines import UsedMachines
from planner.words import many
from planner_sample.collective import halving_doubling

_DEVICE = "each device"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfiguration:
    """The decision: machines, all of whose devices train."""

    num_machines: int
    num_devices: int
    global_batch_size: int

    @property
    def headline(self) -> str:
        """The decision in a few words."""
        return f"{many(self.num_devices, 'device')} ({many(self.num_machines, 'machine')}), one buffer"

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        return {
            "num_machines": self.num_machines,
            "num_devices": self.num_devices,
            "global_batch_size": self.global_batch_size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costed:
    """A configuration with what it costs."""

    configuration: PlainConfiguration
    prediction: Prediction
    objective: float


class PlainDataParallel:
    """What planner asks of a family: see ``planner.families.Family``."""

    NAME = "plain_data_parallel"
    WORDS = "data parallelism with one exchange after the backward pass"
    NOT_MODELLED = ("reading of samples", "convergence and accuracy: a larger batch may need more epochs")
    FITTED = ("utilisation", "bandwidth_efficiency")
    PINS = ("num_machines",)

    # -- a given configuration -----------------------------------------------------------------------------------------

    def configuration_of(self, problem: Problem, given: Mapping[str, Any]) -> PlainConfiguration:
        """Return the configuration that a block means."""
        group, number = _group(problem), given.get("num_machines")
        if not isinstance(number, int) or not 1 <= number <= group.count:
            what = f"configuration.{self.NAME}.num_machines: {number!r} is no number from 1 to {group.count}."
            raise SpecError(f"{what} Write how many machines train.")
        chosen = _configuration(problem, group, number)
        for key, value in given.items():
            if chosen.to_document().get(key, value) != value:
                raise SpecError(f"configuration.{self.NAME}.{key}: {value!r} contradicts num_machines. Leave it out.")
        return chosen

    def predict(self, problem: Problem, configuration: PlainConfiguration) -> Prediction:
        """Return what a configuration costs."""
        group, training, number = _group(problem), problem.training, configuration.num_devices
        profile, precision = problem.profiles[group.device.name], Precision.of(training.dtype, training.optimizer)
        share = ceil(configuration.global_batch_size / number)
        forward_s, backward_s = (float(one(share)) for one in profile.whole)
        link, inside, fitted = problem.cluster.own_link(group.name), group.inside, problem.calibration
        places = Participants(
            num_devices=np.array([number]),
            num_machines=np.array([configuration.num_machines]),
            devices_per_machine=group.devices_per_machine,
            network_bytes_per_s=fitted.links.network_bytes_per_s(link.bandwidth_bytes_per_s, group)
            if configuration.num_machines > 1
            else float("inf"),
            network_latency_s=link.latency_s if configuration.num_machines > 1 else 0.0,
            inside_bytes_per_s=fitted.links.inside_bytes_per_s(group),
            inside_latency_s=0.0 if inside is None else inside.latency_s,
            overhead_s=fitted.overhead_s + fitted.negotiate_s,
        )
        exchange_s = float(halving_doubling(places).at(0)(problem.dnn.num_trainable * precision.gradient_bytes))
        parts = {
            "forward": forward_s,
            "backward": backward_s,
            "exposed_all_reduce": exchange_s,
            "update": profile.update_s,
        }
        iteration_s = sum(parts.values())
        samples, batch = training.dataset_samples, configuration.global_batch_size
        epoch_s = None if samples is None else iteration_s * samples / batch
        memory = data_parallel_memory(problem.dnn, precision, reserve_bytes=fitted.memory_reserve_bytes)
        alone_s = forward_s + backward_s
        return Prediction(
            iteration_time_s=iteration_s,
            epoch_time_s=epoch_s,
            training_time_s=None if epoch_s is None or training.epochs is None else epoch_s * training.epochs,
            breakdown_s=parts,
            communication_s={"all_reduce": exchange_s},
            scaling_factor=(iteration_s - exchange_s) / iteration_s,
            communication_to_computation=exchange_s / alone_s if alone_s else float("inf"),
            memory_bytes=memory.terms_bytes(share, limit_bytes=memory_limit_bytes(problem, group)),
            details={"global_batch_size": batch, "batch_per_device": share},
        )

    def explain(self, problem: Problem, configuration: PlainConfiguration, prediction: Prediction) -> tuple[str, ...]:
        """Return what binds."""
        share = prediction.breakdown_s["exposed_all_reduce"] / prediction.iteration_time_s
        return (f"the exchange takes {share:.0%} of an iteration, and no computing hides it",)

    def machines(self, problem: Problem, configuration: PlainConfiguration) -> Iterator[UsedMachines]:
        """Yield the machines."""
        group = _group(problem)
        yield UsedMachines.training(group, configuration.num_machines, group.devices_per_machine)

    def left_out(
        self, problem: Problem, given: Mapping[str, Any], configuration: PlainConfiguration
    ) -> tuple[str, ...]:
        """Return what a block leaves to us: nothing that changes the prediction."""
        return ()

    # -- what an answer shows ------------------------------------------------------------------------------------------

    def timeline(self, problem: Problem, configuration: PlainConfiguration, *, num_iterations: int = 1) -> Timeline:
        """Return what runs when: the parts, one after the other, as every device does."""
        prediction, drawing = self.predict(problem, configuration), Drawing()
        drawing.process(_DEVICE, [_DEVICE], count=configuration.num_devices)
        drawing.chain(_DEVICE, 0.0, [(name, seconds, name) for name, seconds in prediction.breakdown_s.items()])
        return repeated(drawing.finished(), num_iterations, prediction.iteration_time_s)

    def view(self, cluster: Cluster, block: Mapping[str, Any], prediction: Prediction) -> FamilyView:
        """Return a replica on every device."""
        (group,) = cluster.machine_groups
        words = f"a replica, {prediction.details['batch_per_device']} samples"
        machines = {group.name: (block["num_machines"], group.devices_per_machine, words)}
        role = Role(label="R", words="a replica of the whole network", colour=0)
        return FamilyView(placement=lambda: replicas_on(cluster, machines, role))

    # -- the search ----------------------------------------------------------------------------------------------------

    def search(self, problem: Problem, search: Search, /) -> Plan:
        """Return the best number of machines: all of them are tried, until the search is over."""
        group, found, is_whole = _group(problem), [], True
        check_inner_links(problem, self.NAME)
        for number in _numbers(problem, group):
            if search.is_over:
                is_whole = False
                break
            chosen = _configuration(problem, group, number)
            prediction = self.predict(problem, chosen)
            if prediction.memory_bytes["total"] <= prediction.memory_bytes["limit"]:
                value = prediction.value_of(problem.goal)
                found.append(_Costed(configuration=chosen, prediction=prediction, objective=value))
        if not found and not is_whole:
            raise NoAnswerError(TOO_SHORT)
        if not found:
            raise InfeasibleError("No plan fits: no number of machines keeps memory and limits.")
        best, *others = sorted(found, key=lambda one: one.objective)
        return plan_of(
            problem,
            Searched(
                family=self.NAME,
                not_modelled=self.NOT_MODELLED,
                solver="every number of machines",
                num_candidates=len(found),
                num_solved=len(found),
            ),
            configuration=best.configuration,
            prediction=best.prediction,
            bound=best.objective if is_whole else min(best.objective, self.bound(problem)),
            explanation=self.explain(problem, best.configuration, best.prediction),
            alternatives=[
                alternative_of(one.configuration.headline, one, best, "another number of machines", family=self.NAME)
                for one in others[: search.num_alternatives]
            ],
        )

    def bound(self, problem: Problem) -> float:
        """Return what no plan beats: computing alone."""
        return computation_bound(problem)

    def domain(self) -> str:
        """Return what the search covers."""
        return "all devices of so many equal machines, and one buffer"


FAMILY = PlainDataParallel()


def _group(problem: Problem) -> MachineGroup:
    """Return the only group of machines."""
    first, *others = problem.cluster.machine_groups
    if others:
        raise InfeasibleError(f"No plan fits: {PlainDataParallel.NAME} takes one group of equal machines.")
    return first


def _numbers(problem: Problem, group: MachineGroup) -> list[int]:
    """Return the numbers of machines that the limits and the batch allow."""
    limits, each = problem.limits, group.devices_per_machine
    numbers = [
        number
        for number in range(1, group.count + 1)
        if problem.fixed.get("num_machines", number) == number
        and (limits.machines.least or 1) <= number <= (limits.machines.most or number)
        and (limits.devices.least or 1) <= number * each <= (limits.devices.most or number * each)
        and _batch(problem, number * each) >= number * each
    ]
    return numbers if problem.is_number_of_devices_open else numbers[-1:]


def _batch(problem: Problem, num_devices: int) -> int:
    """Return the global batch: the fixed one, or as large as it may be."""
    training = problem.training
    most = training.max_global_batch_size
    if training.fixed_batch_size is not None:
        return training.fixed_batch_size
    if training.batch_per_device is not None:
        return min(training.batch_per_device * num_devices, most or training.batch_per_device * num_devices)
    return most or num_devices


def _configuration(problem: Problem, group: MachineGroup, num_machines: int) -> PlainConfiguration:
    """Return the configuration of so many machines."""
    number = num_machines * group.devices_per_machine
    return PlainConfiguration(num_machines=num_machines, num_devices=number, global_batch_size=_batch(problem, number))
