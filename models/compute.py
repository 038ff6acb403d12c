"""Seconds of computation: FLOP, a device's peak, and the share of it that is used.

Forward counts 2 FLOP a multiply-add; backward is twice forward (gradient of the input and of the weights), eqs. 4 to 6
of T. Liu et al., WWW '22, doi:10.1145/3485447.3511981. Layers without multiply-adds (pooling, activation,
normalisation) are taken to cost nothing, as there; what they do cost sits in the fitted utilisation. Seconds measured
on one device are scaled to another by the ratio of their peaks.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from planner.cluster import Device
from planner.cost import Profile
from planner.dnn import Dnn
from planner.errors import ModelError
from planner.models.memory import Precision

__all__ = ["BACKWARD_PER_FORWARD", "optimizer_step_s", "peak_flop_per_s", "profile_from_flop", "scaled_to"]

BACKWARD_PER_FORWARD = 2  # eq. 6


def peak_flop_per_s(device: Device, dtype: str) -> float:
    """Return the device's peak for a data type.

    Raises
    ------
    ModelError
        If the table has no rate of that type for the device; the message lists those it has.
    """
    peak = device.peak_flop_per_s.get(dtype)
    if peak is None:
        known = ", ".join(sorted(device.peak_flop_per_s)) or "none at all"
        raise ModelError(f"{device.name!r} has no {dtype} rate (known: {known}). Set dnn.dtype to one of them.")
    return peak


def profile_from_flop(
    dnn: Dnn,
    device: Device,
    *,
    dtype: str,
    utilisation: float,
    flop_per_multiply_add: int = 2,
    utilisation_by_kind: Mapping[str, float] | None = None,
    update_s: float = 0.0,
) -> Profile:
    """Return seconds per sample of every layer: ``C(i) / (c pi)`` forward (eq. 5), twice that backward (eq. 6).

    Parameters
    ----------
    utilisation, utilisation_by_kind
        Share ``c`` of the peak that is reached, in general and for some kinds of layer. It may exceed 1 where it was
        fitted to counts of multiply-adds or to algorithms that save FLOP.
    flop_per_multiply_add
        2; or 1, to read ``c`` as a fit on multiply-adds.
    """
    peak = peak_flop_per_s(device, dtype)
    by_kind = utilisation_by_kind or {}
    used = np.array([by_kind.get(layer.kind, utilisation) for layer in dnn.layers])
    flop = np.array([layer.num_multiply_adds for layer in dnn.layers], dtype=float) * flop_per_multiply_add
    forward_s = flop / (used * peak)
    return Profile(
        forward_s=forward_s,
        backward_s=BACKWARD_PER_FORWARD * forward_s,
        update_s=update_s,
        origin=f"FLOP at {utilisation:.4g} of the {dtype} peak of {device.name}",
    )


def optimizer_step_s(num_trainable: int, device: Device, precision: Precision) -> float:
    """Return the seconds of the optimiser's step, which moves memory and computes next to nothing.

    Read the gradient, read and write the master weights and the optimiser's state, and write the weights where they are
    kept in another type: own estimate from the device's memory bandwidth, a lower bound on the real step.
    """
    state_bytes = precision.master_bytes + precision.optimizer_bytes
    is_mixed = precision.master_bytes > 0
    touched = precision.gradient_bytes + 2 * state_bytes + (1 if is_mixed else 2) * precision.weight_bytes
    return num_trainable * touched / device.memory_bandwidth_bytes_per_s


def scaled_to(profile: Profile, measured_on: Device, device: Device, *, dtype: str) -> tuple[Profile, str]:
    """Return a measured profile for another device, and what to tell the reader; nothing where it is the same.

    Seconds of all layers are scaled by the ratio of the devices' peaks: of ``dtype``, or of fp32 where one of them has
    no such peak. Every layer is thus taken to use the same share of either peak; layers that wait for memory do not.
    Without any common peak the profile comes back as it is. Reading and the update stay: neither is the device's
    arithmetic.
    """
    if device.name == measured_on.name:
        return profile, ""
    common = [
        name for name in (dtype, "fp32") if name in device.peak_flop_per_s and name in measured_on.peak_flop_per_s
    ]
    if not common:
        return profile, (
            f"seconds on {device.name} are taken to be those measured on {measured_on.name}: there is no peak of both "
            f"to scale by"
        )
    ratio = measured_on.peak_flop_per_s[common[0]] / device.peak_flop_per_s[common[0]]
    how = f"scaled from {measured_on.name} by {ratio:.4g}, the ratio of their {common[0]} peaks"
    scaled = replace(
        profile,
        forward_s=profile.forward_s * ratio,
        backward_s=profile.backward_s * ratio,
        origin=f"{profile.origin}; {how}",
    )
    return scaled, f"seconds on {device.name} {how}"
