"""Devices, and links inside a machine, from the tables beside this file.

The tables name their units in their columns and hold figures as their sources print them; :func:`_si` alone turns
them into SI. Peaks are those of training: dense (no sparsity), in tensor cores with fp32 accumulation, fp32 outside of
them, a multiply-add as two. Links are one direction of one device.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from planner.cluster import Device, Link
from planner.frozen import frozen
from planner.names import find, fold
from planner.plugins import Plugin, PluginError, Registry
from planner.shipped import shipped_text
from planner.units import Dimension, parse

_DEVICES, _LINKS, _MACHINES = "devices.csv", "links.csv", "machines.csv"
_DATA_TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
_UNITS = {
    "_tflop_per_s": ("TFLOP/s", Dimension.FLOP_RATE),
    "_gb_per_s": ("GB/s", Dimension.RATE),
    "_gib": ("GiB", Dimension.DATA),
    "_mib": ("MiB", Dimension.DATA),
    "_mhz": ("MHz", Dimension.FREQUENCY),
    "_w": ("W", Dimension.POWER),
}


@cache
def table(file: str) -> MappingProxyType[str, MappingProxyType[str, str]]:
    """Return the rows of a table by their name."""
    text = shipped_text("planner.data", file)
    return MappingProxyType({row["name"]: MappingProxyType(row) for row in csv.DictReader(text.splitlines())})


@cache
def index(file: str) -> MappingProxyType[str, str]:
    """Return the row of a table that each folded name and alias stands for, by its name."""
    rows = table(file).values()
    return MappingProxyType({fold(n): row["name"] for row in rows for n in (row["name"], *row["aliases"].split())})


def _si(row: MappingProxyType[str, str], column: str) -> float | None:
    """Return the figure of a column in SI; None where the cell is empty."""
    unit, dimension = next(unit for suffix, unit in _UNITS.items() if column.endswith(suffix))
    return parse(f"{row[column]} {unit}", dimension) if row[column] else None


def _whole(row: MappingProxyType[str, str], column: str) -> int | None:
    """Return the number of a column; None where the cell is empty."""
    return int(row[column]) if row[column] else None


def _or_infinite(value: float | None) -> float:
    """Return ``value``, or infinity where it is not known: what is not known does not bind."""
    return float("inf") if value is None else value


class _Table(Mapping[str, Device]):
    """The devices of the table, each made when it is asked for."""

    def __getitem__(self, name: str) -> Device:
        return _device_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(table(_DEVICES))

    def __len__(self) -> int:
        return len(table(_DEVICES))


def _of_plugin(found: Any, plugin: Plugin) -> Device:
    """Return the device of a plug-in, which gives it, or what returns it."""
    one = found() if callable(found) else found
    if not isinstance(one, Device):
        raise TypeError(f"{plugin.place} is no planner.cluster.Device")
    return replace(one, name=plugin.name, source=f"{one.source}{'; ' * bool(one.source)}plug-in {plugin.origin}")


DEVICES: Registry[Device] = Registry("planner.devices", _Table(), made_of=_of_plugin)


def _devices_by(name: str) -> Mapping[str, str]:
    """Return the devices by their folded names and aliases; those of plug-ins only where the table has no such name."""
    known = index(_DEVICES)
    return known if fold(name) in known else {**known, **{fold(one): one for one in DEVICES.plugins}}


def device_names() -> tuple[str, ...]:
    """Return the names of all devices, in the table's order."""
    return tuple(table(_DEVICES))


def accelerator_memory_bytes() -> dict[str, float]:
    """Return the memory of the devices that train in 16 bits, by name: those with such a peak, CPUs left out."""
    rows = [device(name) for name in device_names()]
    return {one.name: one.memory_bytes for one in rows if one.kind != "cpu" and "bf16" in one.peak_flop_per_s}


def device(name: str) -> Device:
    """Return a device of the table.

    Parameters
    ----------
    name
        Or an alias; case, spaces, underscores and dashes do not count. An alias that leaves the memory open takes
        16 GB for a V100 and 80 GB for an A100.

    Raises
    ------
    SpecError
        For an unknown device, with the nearest names.

    Notes
    -----
    Memory and its bandwidth are infinite where they are not known, and a data type without a peak is left out.

    >>> device("RTX 2080Ti").peak_flop_per_s["fp32"]
    13450000000000.0
    """
    return DEVICES[find(name, _devices_by(name), "device")]


@cache
def _device_of(name: str) -> Device:
    row = table(_DEVICES)[name]
    peaks = {data_type: _si(row, f"{data_type}_tflop_per_s") for data_type in _DATA_TYPES}
    return Device(
        name=row["name"],
        kind=row["kind"],
        peak_flop_per_s={data_type: peak for data_type, peak in peaks.items() if peak is not None},
        memory_bytes=_or_infinite(_si(row, "memory_gib")),
        memory_bandwidth_bytes_per_s=_or_infinite(_si(row, "memory_bandwidth_gb_per_s")),
        num_multiprocessors=_whole(row, "num_multiprocessors"),
        scale_up_bytes_per_s=_si(row, "scale_up_gb_per_s"),
        process_nm=float(row["process_nm"]) if row["process_nm"] else None,
        has_inline_ecc=row["inline_ecc"] == "yes",
        power_w=_si(row, "power_w"),
        matmul_flop_per_s=_si(row, "measured_matmul_bf16_tflop_per_s"),
        source=row["source"],
    )


def device_rows() -> list[dict[str, str]]:
    """Return the device table as it is printed, for display; an empty cell is not known or does not exist.

    Rows of plug-ins come last, with the figures of every device, where they can be loaded.
    """
    rows = [dict(row) for row in table(_DEVICES).values()]
    for name in DEVICES.plugins:
        try:
            one, empty = DEVICES[name], dict.fromkeys(rows[0], "")
        except PluginError:  # a broken one hides none of the others; who asks for it is told
            continue
        peaks = {f"{dtype}_tflop_per_s": f"{peak / 1e12:.6g}" for dtype, peak in one.peak_flop_per_s.items()}
        held = {
            "memory_gib": one.memory_bytes / 2**30,
            "memory_bandwidth_gb_per_s": one.memory_bandwidth_bytes_per_s / 1e9,
        }
        figures = {key: f"{value:.6g}" for key, value in held.items() if value < float("inf")}
        rows.append({**empty, "name": name, "title": name, "kind": one.kind, **peaks, **figures, "source": one.source})
    return rows


def with_unit(column: str, cell: str) -> str:
    """Return a cell of these tables with the unit that its column names.

    >>> with_unit("memory_bandwidth_gb_per_s", "3350")
    '3350 GB/s'
    """
    unit = next((unit for suffix, (unit, _) in _UNITS.items() if column.endswith(suffix)), "")
    return f"{cell} {unit}" if unit and cell else cell


def inside_link(name: str) -> Link:
    """Return a named link inside a machine.

    Raises
    ------
    SpecError
        For an unknown link, with the nearest names.

    >>> inside_link("NVLink-3").bandwidth_bytes_per_s
    300000000000.0
    """
    links = inside_links()
    return links[find(name, {fold(known): known for known in links}, "link inside a machine")]


def inside_links() -> dict[str, Link]:
    """Return the named links inside a machine: one direction of one device, latency not known and so zero."""
    rows = table(_LINKS)
    return {
        name: Link(bandwidth_bytes_per_s=_or_infinite(_si(row, "bandwidth_gb_per_s"))) for name, row in rows.items()
    }


def link_of(device_name: str) -> str | None:
    """Return the link that a device of the table has inside a machine, where that is one of the links; else None.

    >>> link_of("h100-sxm")
    'nvlink-4'
    """
    row = table(_DEVICES).get(device_name)
    return row["link"] if row is not None and row["link"] in table(_LINKS) else None


def link_rows() -> list[dict[str, str]]:
    """Return the table of links inside a machine as it is printed, with sources, for display."""
    return [dict(row) for row in table(_LINKS).values()]


# --- Machines as they are sold, from the table beside this file: their devices, the link inside, the network cards
# The first row of a device is its reference machine: what is meant where a question names the device alone. A machine's
# devices are as many as its link inside reaches, so a rack of one NVLink domain is one machine, and so is a TPU slice.

_GBIT_BYTES = 1e9 / 8


@frozen
class Machine:
    """A machine that is sold or rented."""

    name: str
    title: str
    # device, num_devices: what it holds; the link ``inside`` joins all of them. None where there is one device
    device: str
    num_devices: int
    # of those, what one operating system has: a tray of a rack. Launchers start as many processes there
    devices_per_host: int
    inside: str | None
    # num_nics, nic_bytes_per_s: network cards for training, and the rate of each; None where machines of this kind
    # differ in it
    num_nics: int
    nic_bytes_per_s: float | None
    source: str

    @property
    def is_pcie(self) -> bool:
        """Whether its devices are cards on PCIe: then a machine may well hold more of them."""
        return self.inside is not None and self.inside.startswith("pcie")

    def nics_of(self, num_devices: int) -> int:
        """Return the network cards of a machine with so many devices: a share of them for fewer; never more."""
        return max(1, self.num_nics * min(num_devices, self.num_devices) // self.num_devices)


@cache
def _machines() -> MappingProxyType[str, Machine]:
    """Return all machines by their name."""
    machines = {}
    for name, row in table(_MACHINES).items():
        gbit = row["gbit_per_s_per_nic"]
        machines[name] = Machine(
            name=name,
            title=row["title"],
            device=row["device"],
            num_devices=int(row["devices"]),
            devices_per_host=int(row["devices_per_host"] or row["devices"]),
            inside=row["inside"] or None,
            num_nics=int(row["nics"]),
            nic_bytes_per_s=float(gbit) * _GBIT_BYTES if gbit else None,
            source=row["source"],
        )
    return MappingProxyType(machines)


def machine_rows() -> list[dict[str, str]]:
    """Return the table of machines as it is printed, with sources, for display."""
    return [dict(row) for row in table(_MACHINES).values()]


def is_machine(name: str) -> bool:
    """Whether a name or an alias is a machine's."""
    return fold(name) in index(_MACHINES)


def machine(name: str) -> Machine:
    """Return a machine of the table.

    Parameters
    ----------
    name
        Or an alias; case, spaces, underscores and dashes do not count.

    Raises
    ------
    SpecError
        For an unknown machine, with the nearest names.

    >>> machine("DGX H100").num_nics, machine("p5.48xlarge").num_nics
    (8, 32)
    """
    return _machines()[find(name, index(_MACHINES), "machine")]


def device_or_machine(name: str) -> str:
    """Return the proper name of a device or of a machine.

    Raises
    ------
    SpecError
        For a name of neither, with the nearest names of both.

    >>> device_or_machine("H100"), device_or_machine("dgx-h100")
    ('h100-sxm', 'hgx-h100')
    """
    known = index(_MACHINES)
    return find(name, {**(index(_DEVICES) if fold(name) in known else _devices_by(name)), **known}, "device or machine")


def machines_of(device: str) -> tuple[Machine, ...]:
    """Return the machines of a device, its reference machine first; none of a CPU, and of a device of the user's."""
    return tuple(one for one in _machines().values() if one.device == device)


def reference_machine(device: str, num_devices: int) -> Machine | None:
    """Return the machine that is meant by so many devices of a kind in one machine.

    Its reference machine, where that has as many or holds cards on PCIe; else the first machine of the device that has.
    None where no machine is sold with as many.

    >>> reference_machine("v100-sxm2-32g", 8).name, reference_machine("v100-sxm2-32g", 16).name
    ('dgx-1-v100', 'dgx-2')
    """
    fitting = (one for one in machines_of(device) if num_devices <= one.num_devices or one.is_pcie)
    return next(fitting, None)


# --- Instance types of clouds, and accelerators as catalogues of prices call them, from the tables beside this file
# Where an instance type stands in the list of prices that ships, or among the machines, it stands in no third place.

_INSTANCES, _ACCELERATORS = "instances.csv", "accelerators.csv"


def instance_rows() -> list[dict[str, str]]:
    """Return the table of instance types as it is printed: its columns are those of a list of prices."""
    return [dict(row) for row in table(_INSTANCES).values()]


@cache
def device_of_accelerator(name: str) -> str | None:
    """Return the device that a catalogue of prices means by an accelerator; empty where it may be one of several.

    None for an accelerator that the tables do not hold.

    >>> device_of_accelerator("H200-SXM"), device_of_accelerator("A100"), device_of_accelerator("Abacus")
    ('h200-sxm', '', None)
    """
    found = index(_ACCELERATORS).get(fold(name))
    return None if found is None else table(_ACCELERATORS)[found]["device"]
