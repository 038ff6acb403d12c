"""What the stages of a pipeline cost: seconds of a micro-batch, gradients, boundaries, and bytes on a device.

Layers stand in the order of :func:`planner.models.linearisation.linearise`; a stage is the run ``first`` to ``last``,
both included, on ``replicas`` equal devices of one machine group. All questions are answered from prefix sums, and take
arrays of ``first`` and ``last`` as well as numbers.

- A micro-batch of b samples is split over the r replicas: each computes ``ceil(b / r)`` samples.
- Placement: the stages of a group take its devices in their order, filling machine after machine.
- A replicated stage exchanges its gradients in one all-reduce, by the cheapest closed form that its placement allows;
  its update takes the share of the whole network's that its trainable parameters have.
- A boundary between two stages on the same one machine uses the link inside: ``latency + bytes / (min(r, r') B)``, each
  device with a link of its own. Any other uses the network: ``latency + bytes / min(k B, k' B')``, with the k machines
  that a stage stands on and their network cards together; that other stages on these machines may send at the same time
  is left out.
- Errors come back as large as the outputs went; images or words that are relayed are charged likewise.

Memory of a stage: weights, gradients and optimiser's state of its layers; for each micro-batch in flight the outputs of
its layers and the input that it received; one outgoing and one incoming error; the reserve. No recomputation.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats, TransferCost
from planner.dnn import Dnn
from planner.models.linearisation import Linearisation, linearise
from planner.models.memory import Precision
from planner.models.pipeline_places import Place, StageMachines

__all__ = ["LayerBytes", "StageCosts", "StageMemory"]

Positions = int | NDArray[np.int64]

_STATISTIC_BYTES = 4  # batch-norm statistics stay in fp32, as in planner.models.memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """The network in its linear order, in bytes: prefix sums with a leading 0, so that a run is one difference.

    ``cut_bytes`` is by position in front of a layer: 0 in front of the first and behind the last.
    """

    names: tuple[str, ...]
    weights_bytes: Floats
    gradients_bytes: Floats
    optimizer_bytes: Floats
    activations_bytes: Floats
    trainable_share: Floats
    cut_bytes: Floats
    line: Linearisation

    @classmethod
    def of(cls, dnn: Dnn, precision: Precision) -> "LayerBytes":
        """Return the bytes of a network."""
        line = linearise(dnn)
        trainable = _prefix([layer.num_trainable for layer in dnn.layers])
        moving = _prefix([layer.num_moving for layer in dnn.layers])
        return cls(
            names=line.names,
            weights_bytes=trainable * precision.weight_bytes + moving * _STATISTIC_BYTES,
            gradients_bytes=trainable * precision.gradient_bytes,
            optimizer_bytes=trainable * (precision.master_bytes + precision.optimizer_bytes),
            activations_bytes=_prefix([layer.num_stored_elements for layer in dnn.layers]) * precision.activation_bytes,
            trainable_share=trainable / max(1.0, float(trainable[-1])),
            cut_bytes=np.array([0.0, *line.cut_elements.tolist(), 0.0]) * precision.activation_bytes,
            line=line,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of a stage on each of its devices; arrays where the stages were.

    Attributes
    ----------
    in_flight_bytes
        Of one micro-batch in flight: outputs of the layers, and the input that the stage received.
    error_bytes
        One outgoing and one incoming error.
    """

    weights_bytes: Any
    gradients_bytes: Any
    optimizer_bytes: Any
    in_flight_bytes: Any
    error_bytes: Any

    def total_bytes(self, num_in_flight: Any) -> Any:
        """Return the bytes with so many micro-batches in flight; the reserve comes on top, once a device."""
        fixed = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.error_bytes
        return fixed + num_in_flight * self.in_flight_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class StageCosts:
    """What any stage of one question costs.

    Parameters
    ----------
    layers, machines
        The network, and the groups that stages may stand on.
    latency_s
        Between a machine of one group and a machine of another, by their indices.
    reserve_bytes
        On every device, beside what stages hold.
    """

    layers: LayerBytes
    machines: tuple[StageMachines, ...]
    latency_s: Floats
    reserve_bytes: float = 0.0

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers.names)

    @cached_property
    def _seconds(self) -> tuple[tuple[Floats, Floats], ...]:
        """Prefix sums of forward and backward seconds of one sample, by group."""
        return tuple((_prefix(one.profile.forward_s), _prefix(one.profile.backward_s)) for one in self.machines)

    @cached_property
    def _all_reduces(self) -> dict[Place, TransferCost]:
        """Costs of exchanges by place, as they are asked for: searches ask for few places, many times."""
        return {}

    def forward_s(self, first: Positions, last: Positions, *, group: int, num_samples: Any) -> Any:
        """Return the forward seconds of ``num_samples`` on one device: ``ceil(b / r)`` of a micro-batch."""
        return _run(self._seconds[group][0], first, last) * num_samples

    def backward_s(self, first: Positions, last: Positions, *, group: int, num_samples: Any) -> Any:
        """Return the backward seconds of ``num_samples`` on one device."""
        return _run(self._seconds[group][1], first, last) * num_samples

    def update_s(self, first: Positions, last: Positions, *, group: int) -> Any:
        """Return the seconds of the optimiser's step on the parameters of these layers."""
        return _run(self.layers.trainable_share, first, last) * self.machines[group].profile.update_s

    def gradient_bytes(self, first: Positions, last: Positions) -> Any:
        """Return the bytes of the gradients of these layers, which replicas exchange."""
        return _run(self.layers.gradients_bytes, first, last)

    def sync_s(self, first: Positions, last: Positions, place: Place) -> Any:
        """Return the seconds in which the replicas of a stage exchange its gradients; 0 for one replica."""
        if isinstance(last, int):  # searches ask this for the same few stages, many times
            key = (first, last, place)
            if key not in self._syncs_s:
                self._syncs_s[key] = self._sync_s(first, last, place)
            return self._syncs_s[key]
        return self._sync_s(first, last, place)

    @cached_property
    def _syncs_s(self) -> dict[Any, float]:
        """Seconds of exchanges by first layer, last layer and place."""
        return {}

    def _sync_s(self, first: Positions, last: Positions, place: Place) -> Any:
        """Return the seconds of an exchange, computed."""
        size = np.asarray(self.gradient_bytes(first, last), dtype=np.float64)
        if place.replicas > 1 and place not in self._all_reduces:
            self._all_reduces[place] = self.machines[place.group].all_reduce(place)
        seconds = self._all_reduces[place](size) if place.replicas > 1 else size * 0.0
        return seconds if size.ndim else float(seconds)

    def boundary_bytes(self, position: Positions) -> Any:
        """Return the bytes of one sample that cross the cut in front of layer ``position``, in each direction."""
        return self.layers.cut_bytes[position]

    def transfer_s(self, position: Positions, before: Place, after: Place, *, microbatch_size: int) -> Any:
        """Return the seconds of one micro-batch over the cut in front of layer ``position``, in either direction.

        ``microbatch_size`` counts the samples of all replicas together. Nothing crosses in 0 s.
        """
        latency_s, rate = self.boundary_link(before, after)
        if isinstance(position, int):
            size = float(self.boundary_bytes(position)) * microbatch_size
            return latency_s + size / rate if size > 0 else 0.0
        sizes = np.asarray(self.boundary_bytes(position), dtype=np.float64) * microbatch_size
        seconds = np.where(sizes > 0, latency_s + sizes / rate, 0.0)
        return seconds if seconds.ndim else float(seconds)

    def boundary_link(self, before: Place, after: Place) -> tuple[float, float]:
        """Return latency and bytes a second between the devices of two stages."""
        one, other = self.machines[before.group], self.machines[after.group]
        if before == after:
            return 0.0, float("inf")  # the same devices: chunks of one device
        is_inside = before.group == after.group and before.num_machines == after.num_machines == 1
        if is_inside and before.first_machine == after.first_machine:
            return one.inside_latency_s, one.inside_bytes_per_s * min(before.replicas, after.replicas)
        rate = min(before.num_machines * one.network_bytes_per_s, after.num_machines * other.network_bytes_per_s)
        return float(self.latency_s[before.group, after.group]), rate

    def memory(self, first: Positions, last: Positions, *, num_samples: Any) -> StageMemory:
        """Return what each device of a stage holds, with ``num_samples`` of every micro-batch."""
        layers, end = self.layers, np.asarray(last) + 1
        received, sent = self.boundary_bytes(first), layers.cut_bytes[end]
        return StageMemory(
            weights_bytes=_run(layers.weights_bytes, first, last),
            gradients_bytes=_run(layers.gradients_bytes, first, last),
            optimizer_bytes=_run(layers.optimizer_bytes, first, last),
            in_flight_bytes=(_run(layers.activations_bytes, first, last) + received) * num_samples,
            error_bytes=(received + sent) * num_samples,
        )


def _prefix(values: Any) -> Floats:
    """Return prefix sums with a leading 0."""
    return np.concatenate(([0.0], np.cumsum(np.asarray(values, dtype=np.float64))))


def _run(prefix: Floats, first: Positions, last: Positions) -> Any:
    """Return the sum of ``first`` to ``last``, by number or by array."""
    if isinstance(last, int):
        return prefix[last + 1] - prefix[first]
    return prefix[np.asarray(last) + 1] - prefix[first]
