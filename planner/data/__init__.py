"""Devices, links inside a machine and published testbeds: tables, each figure with its source."""

from planner.data.devices import device, device_names, device_rows, inside_link, inside_links, link_of, link_rows
from planner.data.presets import preset, preset_names
from planner.data.substitutions import block, block_names, find_block

__all__ = [
    "block",
    "block_names",
    "device",
    "device_names",
    "device_rows",
    "find_block",
    "inside_link",
    "inside_links",
    "link_of",
    "link_rows",
    "preset",
    "preset_names",
]
