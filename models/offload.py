"""Activations that wait in host memory, between the forward and the backward pass: what stays on the device, and waits.

Transformer Engine copies what the first layers keep to the host while others compute, and brings it back before their
backward pass (``AsyncDoubleBufferGroupOffloadHandler`` of ``transformer_engine/pytorch/cpu_offload.py``; Megatron-Core
``cpu_offloading_num_layers``). Both ways the copies of n layers are spread over the pass of all layers, so that a pass
is as long as its computing or as its copies, whichever is longer::

    waits = max(0, n k / r - F) + max(0, n k / r - B)

of a micro-batch, with k bytes that a layer keeps, r bytes/s of the device's own link to its host, F and B seconds of
all layers forward and backward. The device holds what the other layers keep, and of one layer what is on its way. All
that a layer keeps is taken to be copied. Leaves out: room in host memory, what the host does beside it, and the
contention of copies with kernels for the device's memory.
"""

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Ints, Layouts

__all__ = ["offloaded_share", "waits_s"]


def offloaded_share(layouts: Layouts, layers: Ints) -> Floats:
    """Return the share of a stage's layers whose activations wait in host memory, shape (n,).

    Parameters
    ----------
    layouts, layers
        n of them, and the layers of a stage of each.
    """
    return np.asarray(np.minimum(layouts.offload_layers / np.maximum(layers, 1), 1.0))


def waits_s(copied_bytes: Floats, link_bytes_per_s: float, forward_s: Floats, backward_s: Floats) -> Floats:
    """Return how long a device waits for copies in a micro-batch, both ways.

    Parameters
    ----------
    copied_bytes
        Of a micro-batch, one way.
    link_bytes_per_s
        Of the device to its host, each way.
    forward_s, backward_s
        Of all layers.

    Examples
    --------
    >>> float(waits_s(np.array([3e9]), 1e9, np.array([1.0]), np.array([2.0]))[0])
    3.0
    """
    copies_s = copied_bytes / link_bytes_per_s
    return np.asarray(np.maximum(copies_s - forward_s, 0.0) + np.maximum(copies_s - backward_s, 0.0))
