"""A collective: what an all-reduce by recursive halving and doubling takes."""

import numpy as np

from planner.models.communication import Affines, Participants


def halving_doubling(places: Participants) -> Affines:
    """Return the seconds of an all-reduce: halves are exchanged and summed, then put together again.

    ``2 log2(p)`` hops, and ``2 (p - 1) / p`` of the buffer over the slowest link; one device sends nothing. Source:
    R. Thakur, R. Rabenseifner and W. Gropp, IJHPCA 19(1), 2005, section 4.4, for powers of two; other numbers are taken
    to have as many steps as the next one. All arguments may be arrays of one shape, of many settings at once.
    """
    devices, link = np.asarray(places.num_devices, dtype=float), places.flat
    steps, moved = 2 * np.ceil(np.log2(devices)), 2 * (devices - 1) / devices
    is_alone = devices <= 1
    startup_s = steps * np.asarray(link["latency_s"]) + np.asarray(link["overhead_s"])
    per_byte_s = moved * (1 / np.asarray(link["bandwidth_bytes_per_s"]) + 0.5 / np.asarray(link["reduce_bytes_per_s"]))
    return Affines(startup_s=np.where(is_alone, 0.0, startup_s), per_byte_s=np.where(is_alone, 0.0, per_byte_s))
