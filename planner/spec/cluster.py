"""The ``cluster`` block of a spec, made into a :class:`planner.cluster.Cluster`."""

from dataclasses import dataclass

from planner import data
from planner.cluster import Cluster, Device, Link, MachineGroup, Switch
from planner.errors import SpecError
from planner.spec.machines import ClusterSpec, DeviceSpec, LinkSpec, MachineSpec, NodeSpec
from planner.spec.source import Notes
from planner.units import Dimension, format_human

__all__ = ["ClusterBuilder"]

_LATENCY_S = 20e-6
_INSIDE = "pcie-3-x16"  # of a device whose own link is not known


@dataclass(frozen=True, slots=True)
class ClusterBuilder:
    """Builds one cluster; faults and assumptions go into ``notes``."""

    notes: Notes

    def build(self, spec: ClusterSpec) -> Cluster:
        """Return the cluster of a preset, of machine groups, or of a drawn graph."""
        if spec.preset is not None:
            given = ClusterSpec.model_validate(data.preset(spec.preset))
            return self._of_machines(given, spec.preset)
        if spec.machines is not None:
            return self._of_machines(spec, spec.name or "cluster")
        return self._of_nodes(spec)

    def _of_machines(self, spec: ClusterSpec, name: str) -> Cluster:
        """Return machine groups on one switch."""
        machines = spec.machines or []
        names = [machine.name or f"machines-{index}" for index, machine in enumerate(machines)]
        groups = [
            self._group(machine, called, index)
            for index, (machine, called) in enumerate(zip(machines, names, strict=True))
        ]
        if sum(machine.count for machine in machines) == 1:
            return Cluster(name, groups, [], source=spec.source)
        links = []
        for index, (machine, called) in enumerate(zip(machines, names, strict=True)):
            if machine.network is None:
                mend = "Add e.g. network: 25 Gbit/s."
                self.notes.fault(("cluster", "machines", index), "several machines, and no network between them.", mend)
                continue
            latency_s = _LATENCY_S if machine.latency is None else machine.latency
            if machine.latency is None:
                self.notes.assumptions.append(
                    f"network latency of {called}: {format_human(_LATENCY_S, Dimension.TIME)} per hop"
                )
            links.append((called, "network", Link(bandwidth_bytes_per_s=machine.network, latency_s=latency_s)))
        if self.notes.faults:
            raise SpecError.of([])
        return Cluster(name, [*groups, Switch(name="network")], links, source=spec.source)

    def _of_nodes(self, spec: ClusterSpec) -> Cluster:
        """Return a drawn cluster."""
        nodes: list[MachineGroup | Switch] = []
        for index, node in enumerate(spec.nodes or []):
            if node.type == "switch":
                nodes.append(Switch(name=node.name))
            elif node.device is None:
                self.notes.fault(
                    ("cluster", "nodes", index), "this machine has no device.", "Add e.g. device: a100-sxm4-80gb."
                )
            else:
                nodes.append(self._group(node, node.name, index))
        links = [
            (cable.ends[0], cable.ends[1], Link(bandwidth_bytes_per_s=cable.bandwidth, latency_s=cable.latency))
            for cable in spec.links or []
        ]
        if self.notes.faults:
            raise SpecError.of([])
        return Cluster(spec.name or "cluster", nodes, links, source=spec.source)

    def _group(self, machine: MachineSpec, name: str, index: int) -> MachineGroup:
        """Return one group of machines."""
        at = ("cluster", "nodes" if isinstance(machine, NodeSpec) else "machines", index)
        device = self.notes.attempt((*at, "device"), lambda: self._device(machine.device))
        known = None if device is None else data.link_of(device.name)
        inside = self.notes.attempt((*at, "inside"), lambda: self._inside(machine, name, known or _INSIDE))
        host_link = machine.host_link
        if host_link is None and isinstance(machine.inside, str) and machine.inside.startswith("pcie") and inside:
            host_link = inside.bandwidth_bytes_per_s
        storage = machine.storage
        return MachineGroup(
            name=name,
            count=machine.count,
            device=device or Device(name="unknown"),
            devices_per_machine=machine.devices,
            inside=inside,
            num_nics=machine.nics,
            storage=storage.build() if storage else None,
            host_link_bytes_per_s=host_link or float("inf"),
            decode_samples_per_s=machine.decode or float("inf"),
        )

    def _device(self, given: str | DeviceSpec) -> Device:
        """Return a device by name, or as the spec describes it."""
        if isinstance(given, str):
            return data.device(given)
        peaks = {dtype: getattr(given, dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")}
        return Device(
            name=given.name,
            kind=given.kind,
            peak_flop_per_s={dtype: peak for dtype, peak in peaks.items() if peak is not None},
            memory_bytes=float("inf") if given.memory is None else given.memory,
            memory_bandwidth_bytes_per_s=given.memory_bandwidth or float("inf"),
            power_w=given.power,
            is_verified=given.verified,
            source=given.source,
        )

    def _inside(self, machine: MachineSpec, name: str, usual: str) -> Link | None:
        """Return the link inside a machine; the usual one where there are several devices and none is named."""
        if isinstance(machine.inside, str):
            return data.inside_link(machine.inside)
        if isinstance(machine.inside, LinkSpec):
            return Link(bandwidth_bytes_per_s=machine.inside.bandwidth, latency_s=machine.inside.latency)
        if machine.devices == 1:
            return None
        self.notes.assumptions.append(f"devices inside {name} are linked by {usual}")
        return data.inside_link(usual)
