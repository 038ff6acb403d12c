"""Which machines a plan takes, and how many devices of each: what a family says of its configurations."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Literal, Self

from planner.cluster import MachineGroup
from planner.frozen import frozen


@frozen
class UsedMachines:
    """So many machines of a group, of each of which the plan takes the same number of devices."""

    # group, device: names of the group of machines, and of its type of device
    group: str
    device: str
    num_machines: int
    devices_per_machine: int  # those that train; 0 on a machine that serves only
    role: Literal["worker", "server"] = "worker"  # ``worker`` where devices train, ``server`` where parameters are kept
    is_shared: bool = False  # whether these machines stand in a row of workers, too: servers on the machines of workers

    @property
    def num_devices(self) -> int:
        """Devices that train on all of them."""
        return self.num_machines * self.devices_per_machine

    @classmethod
    def training(cls, group: MachineGroup, num_machines: int, devices_per_machine: int) -> Self:
        """Return machines that train."""
        return cls(
            group=group.name,
            device=group.device.name,
            num_machines=num_machines,
            devices_per_machine=devices_per_machine,
        )

    @classmethod
    def serving(cls, group: MachineGroup, num_machines: int, *, is_shared: bool = False) -> Self:
        """Return machines that serve."""
        return cls(
            group=group.name,
            device=group.device.name,
            num_machines=num_machines,
            devices_per_machine=0,
            role="server",
            is_shared=is_shared,
        )


def by_host(rows: Iterable[UsedMachines], groups: Iterable[MachineGroup]) -> Iterator[UsedMachines]:
    """Yield used machines host by host, as launchers know them: a rack of 18 trays is 18 of them.

    Parameters
    ----------
    rows, groups
        What a plan takes, in the order of its ranks, and the groups of machines that it is taken of.
    """
    sizes = {group.name: group.host_size for group in groups}
    for row in rows:
        number, left = divmod(row.devices_per_machine, sizes[row.group])
        if row.role == "server" or number + (left > 0) <= 1:
            yield row
        elif not left:
            yield replace(row, num_machines=row.num_machines * number, devices_per_machine=sizes[row.group])
        else:
            for _ in range(row.num_machines):
                yield replace(row, num_machines=number, devices_per_machine=sizes[row.group])
                yield replace(row, num_machines=1, devices_per_machine=left)


def filled(groups: Iterable[MachineGroup], number: int) -> Iterator[UsedMachines]:
    """Yield so many devices of machines that are filled one after the other; the last may stay partly empty."""
    for group in groups:
        shares = []
        for _ in range(group.count):
            if number <= 0:
                break
            shares.append(min(number, group.devices_per_machine))
            number -= shares[-1]
        for devices, run in groupby(shares):
            yield UsedMachines.training(group, len(list(run)), devices)
