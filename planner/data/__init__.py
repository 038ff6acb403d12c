"""Devices, links inside a machine and published testbeds: tables, each figure with its source."""

from planner.data.devices import device, device_names, device_rows, inside_link, inside_links, link_rows
from planner.data.presets import preset, preset_names

__all__ = [
    "device",
    "device_names",
    "device_rows",
    "inside_link",
    "inside_links",
    "link_rows",
    "preset",
    "preset_names",
]
