"""Devices, links inside a machine, machines as sold and published testbeds: tables, each figure with its source."""

from planner.data.devices import device, device_names, device_rows, inside_link, inside_links, link_of, link_rows
from planner.data.machines import (
    Machine,
    device_or_machine,
    is_machine,
    machine,
    machine_names,
    machine_rows,
    machines_of,
    reference_machine,
)
from planner.data.presets import preset, preset_names
from planner.data.substitutions import block, block_names, find_block

__all__ = [
    "Machine",
    "block",
    "block_names",
    "device",
    "device_names",
    "device_or_machine",
    "device_rows",
    "find_block",
    "inside_link",
    "inside_links",
    "is_machine",
    "link_of",
    "link_rows",
    "machine",
    "machine_names",
    "machine_rows",
    "machines_of",
    "preset",
    "preset_names",
    "reference_machine",
]
