"""A device: its figures as the vendor states them, in SI units."""

from planner.cluster import Device

NPU = Device(
    name="sample-npu",
    peak_flop_per_s={"fp32": 50e12, "bf16": 400e12},
    memory_bytes=64 * 2**30,
    memory_bandwidth_bytes_per_s=1.6e12,
    power_w=400,
    source="made up, as a sample",
)
