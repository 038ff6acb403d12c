"""Machines as they are sold, from the table beside this file: their devices, the link inside, the network cards.

The first row of a device is its reference machine: what is meant where a question names the device alone. A machine's
devices are as many as its link inside reaches, so a rack of one NVLink domain is one machine, and so is a TPU slice.
"""

from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from planner.data.devices import device_index, table
from planner.names import find, fold

__all__ = [
    "Machine",
    "device_or_machine",
    "is_machine",
    "machine",
    "machine_names",
    "machine_rows",
    "machines_of",
    "reference_machine",
]

_FILE = "machines.csv"
_GBIT_BYTES = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine that is sold or rented.

    Attributes
    ----------
    device, num_devices
        What it holds; the link ``inside`` joins all of them. None where there is one device.
    num_nics, nic_bytes_per_s
        Network cards for training, and the rate of each; None where machines of this kind differ in it.
    """

    name: str
    title: str
    device: str
    num_devices: int
    inside: str | None
    num_nics: int
    nic_bytes_per_s: float | None
    is_verified: bool
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
    return MappingProxyType({name: _machine(row) for name, row in table(_FILE).items()})


def _machine(row: MappingProxyType[str, str]) -> Machine:
    """Return the machine of a row."""
    gbit = row["gbit_per_s_per_nic"]
    return Machine(
        name=row["name"],
        title=row["title"],
        device=row["device"],
        num_devices=int(row["devices"]),
        inside=row["inside"] or None,
        num_nics=int(row["nics"]),
        nic_bytes_per_s=float(gbit) * _GBIT_BYTES if gbit else None,
        is_verified=row["verified"] == "yes",
        source=row["source"],
    )


@cache
def _index() -> MappingProxyType[str, str]:
    """Return the machine that each folded name and alias stands for."""
    rows = table(_FILE).values()
    return MappingProxyType({fold(n): row["name"] for row in rows for n in (row["name"], *row["aliases"].split())})


def machine_names() -> tuple[str, ...]:
    """Return the names of all machines, in the table's order."""
    return tuple(_machines())


def machine_rows() -> list[dict[str, str]]:
    """Return the table of machines as it is printed, with sources, for display."""
    return [dict(row) for row in table(_FILE).values()]


def is_machine(name: str) -> bool:
    """Whether a name or an alias is a machine's."""
    return fold(name) in _index()


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
    return _machines()[find(name, _index(), "machine")]


def device_or_machine(name: str) -> str:
    """Return the proper name of a device or of a machine.

    Raises
    ------
    SpecError
        For a name of neither, with the nearest names of both.

    >>> device_or_machine("H100"), device_or_machine("dgx-h100")
    ('h100-sxm', 'hgx-h100')
    """
    return find(name, {**device_index(), **_index()}, "device or machine")


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
