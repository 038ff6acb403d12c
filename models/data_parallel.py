"""One iteration of synchronous data-parallel training: computation, gradients as they get ready, and what is exposed.

Gradients become ready in the reverse of the forward order. Time runs from the start of the (last) backward pass. The
overlap of communication and computation is that of T. Liu et al., WWW '22, doi:10.1145/3485447.3511981, eqs. 3 to 16.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

import numpy as np

from planner.channel import FusionSchedule
from planner.cost import Floats, Profile
from planner.dnn import Dnn

__all__ = ["Gradients", "Step", "exposed_s", "gradients_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """What has to be exchanged, in ready order: names, bytes, and when each is ready, in seconds per sample."""

    names: tuple[str, ...]
    size_bytes: Floats
    ready_s_per_sample: Floats

    @property
    def total_bytes(self) -> float:
        """All gradients."""
        return float(self.size_bytes.sum())


def gradients_of(dnn: Dnn, profile: Profile, *, gradient_bytes: int, unit: str = "layer") -> Gradients:
    """Return the gradients of a network.

    Parameters
    ----------
    gradient_bytes
        Bytes of one number.
    unit
        ``layer``: one gradient for every layer with weights; batch norm goes with the layer before it, as
        the OSF model counts layers. ``tensor``: one for every trainable tensor, ready with its layer.
    """
    after_s = np.cumsum(profile.backward_s[::-1])[::-1]  # backward of this layer and of all later ones
    rows: list[tuple[str, float, float]] = []
    for layer, ready_s in zip(dnn.layers, after_s.tolist(), strict=True):
        trained = [tensor for tensor in layer.tensors if tensor.is_trainable]
        if unit == "tensor":
            rows.extend((tensor.name, float(tensor.num_elements * gradient_bytes), ready_s) for tensor in trained)
        elif trained and layer.kind == "batch_norm" and rows:
            name, size, earlier_s = rows[-1]
            rows[-1] = (name, size + layer.num_trainable * gradient_bytes, earlier_s)
        elif trained:
            rows.append((layer.name, float(layer.num_trainable * gradient_bytes), ready_s))
    rows.reverse()
    return Gradients(
        names=tuple(name for name, _, _ in rows),
        size_bytes=np.array([size for _, size, _ in rows]),
        ready_s_per_sample=np.array([ready_s for _, _, ready_s in rows]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Computation of one iteration on the device with the largest share, in ``num_microbatches`` passes.

    Gradients are exchanged during the backward pass of the last micro-batch, which is one of the larger ones.
    """

    forward_s: float
    backward_s: float
    last_backward_s: float
    update_s: float

    @classmethod
    def of(cls, profile: Profile, *, batch_per_device: int, num_microbatches: int = 1) -> "Step":
        """Return the step of a share of ``batch_per_device`` samples."""
        backward_s = float(profile.backward_s.sum())
        return cls(
            forward_s=float(profile.forward_s.sum()) * batch_per_device,
            backward_s=backward_s * batch_per_device,
            last_backward_s=backward_s * ceil(batch_per_device / num_microbatches),
            update_s=profile.update_s,
        )

    @property
    def computation_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def exposed_s(schedule: FusionSchedule, *, backward_end_s: float, negotiate_s: float) -> Mapping[str, float]:
    """Return the communication after the backward pass, by what the channel does: it sums to finish - backward_end.

    all_reduce: transfers; negotiate: coordination before each; wait: a full buffer waiting for the next gradient;
    misc: the channel idles.
    """
    total = dict.fromkeys(("all_reduce", "wait", "negotiate", "misc"), 0.0)
    now, free = backward_end_s, float("-inf")
    for ready, start, end in zip(
        schedule.ready_s.tolist(), schedule.start_s.tolist(), schedule.end_s.tolist(), strict=True
    ):
        spans = (("misc", max(free, ready)), ("wait", start), ("negotiate", min(end, start + negotiate_s)))
        for what, until in (*spans, ("all_reduce", end)):
            total[what] += max(0.0, until - now)
            now = max(now, until)
        free = end
    return total
