"""All decisions of the family ``parameter_server``, and the block that says them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.models.compression import Compression
from planner.units import Dimension, format_exact

__all__ = ["NAME", "ParameterServerConfiguration"]

NAME = "parameter_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterServerConfiguration:
    """All decisions of the family.

    Attributes
    ----------
    workers
        Machines of each group that work, by the group's name.
    servers
        The group whose machines serve.
    co_located
        Whether servers stand on the first machines of their group that work, instead of on others.
    placement
        A rule, or the server of every tensor.
    batch_shares
        Samples of one device, by the group's name: the largest share. Where they make more than the batch, some
        devices have one sample less.
    global_batch_size
        Samples of one iteration; left out, what the question fixes, or all shares together.
    compression
        Share of every gradient that is not pushed, and the seconds that leaving nothing out would take.
        Pulls are whole.
    synchronisation, staleness
        ``bsp``; ``ssp``, and by how many iterations the fastest worker may lead; ``asp``; ``local_sgd``, and how many
        iterations in a row exchange nothing (its local steps less one).
    """

    num_parameter_servers: int
    workers: Mapping[str, int]
    servers: str
    co_located: bool
    placement: str | Mapping[str, int]
    batch_shares: Mapping[str, int]
    global_batch_size: int | None = None
    compression: Compression | None = None
    synchronisation: str = "bsp"
    staleness: int = 0

    @property
    def headline(self) -> str:
        """How many workers and servers, and how they keep in step if not by a barrier."""
        workers = " + ".join(f"{count} {name}" for name, count in self.workers.items())
        place = "on the same machines" if self.co_located else f"on {self.servers}"
        many = "s" * (self.num_parameter_servers > 1)
        return f"{workers} as workers, {self.num_parameter_servers} server{many} {place}{self._steps}"

    @property
    def _steps(self) -> str:
        """How workers keep in step, in words; nothing under BSP."""
        words = {
            "ssp": f", SSP({self.staleness})",
            "asp": ", ASP",
            "local_sgd": f", local SGD({self.staleness + 1})",
        }
        return words.get(self.synchronisation, "")

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        steps = {"ssp": {"max_staleness": self.staleness}, "local_sgd": {"local_steps": self.staleness + 1}}
        batch = {} if self.global_batch_size is None else {"global_batch_size": self.global_batch_size}
        return {
            "num_parameter_servers": self.num_parameter_servers,
            "workers": dict(self.workers),
            "servers": self.servers,
            "co_located": self.co_located,
            "placement": self.placement if isinstance(self.placement, str) else dict(self.placement),
            "batch_shares": dict(self.batch_shares),
            **batch,
            **({} if self.compression is None else {"compression": _compression_block(self.compression)}),
            **({} if self.synchronisation == "bsp" else {"synchronisation": self.synchronisation}),
            **steps.get(self.synchronisation, {}),
        }


def _compression_block(compression: Compression) -> dict[str, Any]:
    """Return the block that a spec reads back."""
    return {"removed": float(compression.removed), "time": format_exact(compression.scale_s, Dimension.TIME)}
