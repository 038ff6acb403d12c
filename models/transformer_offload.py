"""Seconds that the optimiser's step takes longer or shorter where its state lies in host memory.

Per device and step, for the parameters whose state the device keeps (all that it holds, or a shard of them under ZeRO):
gradients go down to the host and updated weights come back up over the device's link to it, both as they are exchanged;
the processor then moves the optimiser's state through its memory, which the devices of a machine share. Transfers and
the update follow one another. Source: J. Ren et al., ZeRO-Offload, arXiv 2101.06840, sections 4 and 5.

Leaves out a step that is delayed by one iteration (their section 5.2), and reads of the host's memory by the input.
"""

from dataclasses import dataclass

import numpy as np

from planner.cost import Floats
from planner.models.layouts import Layouts
from planner.models.transformer_parameters import block_parameters, embedding_parameters, head_parameters
from planner.transformer import Transformer

__all__ = ["Host", "offload_s", "state_parameters"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine's host, as one of its devices sees it.

    Attributes
    ----------
    link_bytes_per_s
        Between a device and the host's memory, one direction.
    memory_bytes_per_s
        What the processor moves through its memory for one device, while it does so for all.
    """

    link_bytes_per_s: float
    memory_bytes_per_s: float


def state_parameters(transformer: Transformer, layouts: Layouts) -> Floats:
    """Return the parameters whose optimiser's state one device keeps: of its share of the layers, and of one end.

    ZeRO of any stage shares out dense ones over data x context devices, experts over data x context / expert.
    """
    num_moe, num_layers = transformer.num_moe_layers, transformer.num_layers
    shared, routed = np.zeros(1), np.zeros(1)
    if num_moe < num_layers:
        dense = block_parameters(transformer, "dense", layouts)
        shared = shared + (num_layers - num_moe) * dense.shared
    if num_moe:
        moe = block_parameters(transformer, "moe", layouts)
        shared, routed = shared + num_moe * moe.shared, num_moe * moe.routed
    first, last = embedding_parameters(transformer, layouts), head_parameters(transformer, layouts)
    ends = np.where(layouts.pipeline > 1, np.maximum(first, last), first + last)
    shards = np.where(layouts.zero > 0, layouts.data * layouts.context, 1)
    held = shared / layouts.pipeline + ends
    return held / shards + routed / layouts.pipeline / np.maximum(shards / layouts.expert, 1)


def offload_s(
    transformer: Transformer,
    layouts: Layouts,
    host: Host,
    *,
    gradient_bytes: float,
    weight_bytes: float,
    optimizer_bytes: float,
) -> Floats:
    """Return the seconds of an optimiser's step on the host.

    Parameters
    ----------
    gradient_bytes, weight_bytes
        Of one parameter, as it goes down, and as it comes back.
    optimizer_bytes
        That the step moves through memory per parameter.
    """
    seconds = (gradient_bytes + weight_bytes) / host.link_bytes_per_s + optimizer_bytes / host.memory_bytes_per_s
    return state_parameters(transformer, layouts) * seconds
