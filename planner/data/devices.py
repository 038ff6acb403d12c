"""Devices, and links inside a machine, from the tables beside this file.

The tables name their units in their columns and hold figures as their sources print them; :func:`_si` alone turns
them into SI. Peaks are dense (no sparsity) and count a multiply-add as two; links are one direction of one device.
"""

import csv
from functools import cache
from importlib import resources
from types import MappingProxyType

from planner.cluster import Device, Link
from planner.names import find, fold
from planner.units import Dimension, parse

__all__ = [
    "accelerator_memory_bytes",
    "device",
    "device_index",
    "device_names",
    "device_rows",
    "inside_link",
    "inside_links",
    "link_of",
    "link_rows",
    "table",
]

_DATA_TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8")
_UNITS = {
    "_tflop_per_s": ("TFLOP/s", Dimension.FLOP_RATE),
    "_gb_per_s": ("GB/s", Dimension.RATE),
    "_gib": ("GiB", Dimension.DATA),
    "_w": ("W", Dimension.POWER),
}


@cache
def table(file: str) -> MappingProxyType[str, MappingProxyType[str, str]]:
    """Return the rows of a table by their name."""
    text = resources.files("planner.data").joinpath(file).read_text(encoding="utf-8")
    return MappingProxyType({row["name"]: MappingProxyType(row) for row in csv.DictReader(text.splitlines())})


@cache
def device_index() -> MappingProxyType[str, str]:
    """Return the device that each folded name and alias stands for."""
    rows = table("devices.csv").values()
    return MappingProxyType({fold(n): row["name"] for row in rows for n in (row["name"], *row["aliases"].split())})


def _si(row: MappingProxyType[str, str], column: str) -> float | None:
    """Return the figure of a column in SI; None where the cell is empty."""
    unit, dimension = next(unit for suffix, unit in _UNITS.items() if column.endswith(suffix))
    return parse(f"{row[column]} {unit}", dimension) if row[column] else None


def _or_infinite(value: float | None) -> float:
    """Return ``value``, or infinity where it is not known: what is not known does not bind."""
    return float("inf") if value is None else value


def device_names() -> tuple[str, ...]:
    """Return the names of all devices, in the table's order."""
    return tuple(table("devices.csv"))


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
    row = table("devices.csv")[find(name, device_index(), "device")]
    peaks = {data_type: _si(row, f"{data_type}_tflop_per_s") for data_type in _DATA_TYPES}
    return Device(
        name=row["name"],
        kind=row["kind"],
        peak_flop_per_s={data_type: peak for data_type, peak in peaks.items() if peak is not None},
        memory_bytes=_or_infinite(_si(row, "memory_gib")),
        memory_bandwidth_bytes_per_s=_or_infinite(_si(row, "memory_bandwidth_gb_per_s")),
        power_w=_si(row, "power_w"),
        is_verified=row["verified"] == "yes",
        source=row["source"],
    )


def device_rows() -> list[dict[str, str]]:
    """Return the device table as it is printed, for display; an empty cell is not known or does not exist."""
    return [dict(row) for row in table("devices.csv").values()]


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
    rows = table("links.csv")
    return {
        name: Link(bandwidth_bytes_per_s=_or_infinite(_si(row, "bandwidth_gb_per_s"))) for name, row in rows.items()
    }


def link_of(device_name: str) -> str | None:
    """Return the link that a device of the table has inside a machine, where that is one of the links; else None.

    >>> link_of("h100-sxm")
    'nvlink-4'
    """
    row = table("devices.csv").get(device_name)
    return row["link"] if row is not None and row["link"] in table("links.csv") else None


def link_rows() -> list[dict[str, str]]:
    """Return the table of links inside a machine as it is printed, with sources, for display."""
    return [dict(row) for row in table("links.csv").values()]
