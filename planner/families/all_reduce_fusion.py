"""How gradients are fused on given devices: the optimum, and the rules of frameworks and papers."""

import numpy as np

from planner.channel import Ends
from planner.cost import Affine, TransferCost
from planner.families.all_reduce_cost import AllReduceCost, Setting
from planner.solvers.fusion import optimal_groups
from planner.solvers.fusion_heuristics import AdaFusion, ada_fusion, constant_buffer, mg_wfbp, one_group, unfused

__all__ = ["best_ends", "fusion_rules", "one_transfer_s"]

_MIB = 2**20


def best_ends(cost: AllReduceCost, setting: Setting) -> Ends:
    """Return the best contiguous groups; none where there is nothing to exchange."""
    if setting.num_devices == 1 or not cost.gradients.names:
        return ()
    fitted = cost.problem.calibration
    solution = optimal_groups(
        cost.ready_s(setting),
        cost.gradients.size_bytes,
        cost.transfer_cost(setting),
        wait=fitted.wait,
        timeout_s=fitted.timeout_s,
    )
    assert solution.value is not None  # a grouping always exists
    return solution.value


def fusion_rules(cost: AllReduceCost, setting: Setting) -> dict[str, Ends]:
    """Return the groups of every rule that a framework or a paper uses, by its name."""
    ready_s, sizes = cost.ready_s(setting), cost.gradients.size_bytes
    transfer = cost.transfer_cost(setting)
    timeout_s = cost.problem.calibration.timeout_s
    startup_s = transfer.startup_s if isinstance(transfer, Affine) else one_transfer_s(transfer, 1.0)
    return {
        "no fusion": unfused(len(sizes)),
        "buffer of 25 MiB (PyTorch DDP's default)": constant_buffer(sizes, 25 * _MIB, ready_s, timeout_s),
        "buffer of 64 MiB (Horovod's default)": constant_buffer(sizes, 64 * _MIB, ready_s, timeout_s),
        "one buffer": one_group(len(sizes)),
        "MG-WFBP": mg_wfbp(ready_s, sizes, transfer, startup_s),
        "adaFusion": ada_fusion(ready_s, sizes, transfer, AdaFusion.LITERAL),
        "adaFusion, idle waiting only": ada_fusion(ready_s, sizes, transfer, AdaFusion.IDLE),
    }


def one_transfer_s(cost: TransferCost, size_bytes: float) -> float:
    """Return the seconds of one transfer."""
    return float(cost(np.array([size_bytes]))[0])
