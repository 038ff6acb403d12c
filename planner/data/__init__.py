"""Devices, links inside a machine, machines as sold and published testbeds: tables, each figure with its source."""

from planner.data.devices import (
    Machine,
    device,
    device_names,
    device_of_accelerator,
    device_or_machine,
    device_rows,
    inside_link,
    inside_links,
    instance_rows,
    is_machine,
    link_of,
    link_rows,
    machine,
    machine_rows,
    machines_of,
    reference_machine,
    with_unit,
)
from planner.data.presets import block, block_names, find_block, preset, preset_names

__all__ = ["Machine", "block", "block_names", "device", "device_names", "device_of_accelerator", "device_or_machine"]
__all__ += ["device_rows", "find_block", "inside_link", "inside_links", "instance_rows", "is_machine", "link_of"]
__all__ += ["link_rows", "machine", "machine_rows", "machines_of", "preset", "preset_names", "reference_machine"]
__all__ += ["with_unit"]
