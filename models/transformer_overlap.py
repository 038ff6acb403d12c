"""What of an exchange stays exposed where computing runs beside it: small closed forms over arrays of layouts.

Limits of each: an exchange of no time leaves nothing exposed; without computing all of it is. Sources: buckets of
gradients: S. Li et al., PVLDB 13(12), 2020, doi:10.14778/3415478.3415530, section 3.2.3; gathers one layer ahead:
Y. Zhao et al., PVLDB 16(12), 2023, doi:10.14778/3611540.3611569, section 3.3; the ring behind attention: H. Liu et
al., arXiv 2310.01889, section 3. The sums are those of two lines that serve equal jobs one after the other.
"""

import numpy as np

from planner.cost import Floats

__all__ = ["buckets_exposed_s", "fraction_exposed_s", "layers_s", "ring_exposed_s"]


def buckets_exposed_s(exchange_s: Floats, backward_s: Floats, num_buckets: Floats) -> Floats:
    """Return what of the gradients' exchange is left behind the backward that it runs beside.

    Parameters
    ----------
    exchange_s
        Of all buckets, one after the other.
    backward_s
        Of the last micro-batch: the only one with gradients that are complete.
    num_buckets
        n equal buckets, of which each is ready when its n-th of the backward is done.

    Notes
    -----
    ``max(exchange / n, exchange - (n - 1) / n backward)``: the last bucket is always exposed. Exact.
    """
    return np.maximum(exchange_s / num_buckets, exchange_s - (1 - 1 / num_buckets) * backward_s)


def layers_s(compute_s: Floats, before_s: Floats, after_s: Floats, num_layers: Floats) -> Floats:
    """Return the seconds of computing and exchange of equal layers, each layer's weights gathered one layer ahead.

    Parameters
    ----------
    compute_s, before_s, after_s
        Of one layer: its computing, the exchange that goes before (ZeRO-3's gather) and the one behind (its
        reduce-scatter); both exchanges take the same network, in turn.
    num_layers
        Layers in all, over all micro-batches that follow one another.

    Notes
    -----
    ``before + compute + after + (num_layers - 1) max(compute, before + after)``: exact where computing is the longer,
    or nothing goes behind; else at most one layer's ``compute`` too long.
    """
    return before_s + compute_s + after_s + (num_layers - 1) * np.maximum(compute_s, before_s + after_s)


def ring_exposed_s(exchange_s: Floats, attention_s: Floats, context: Floats) -> Floats:
    """Return what of a ring's transfers attention does not hide.

    Parameters
    ----------
    exchange_s
        Of all ``context - 1`` steps.
    attention_s
        Of all ``context`` steps, equal: each runs beside the transfer for the next.
    """
    steps = np.maximum(context - 1, 0)
    return np.maximum(exchange_s - steps * attention_s / np.maximum(context, 1), 0.0)


def fraction_exposed_s(exchange_s: Floats, compute_s: Floats, fraction: Floats | float) -> Floats:
    """Return what of an exchange is left if computing beside it may hide a fraction: 0 to 1, a stated parameter."""
    return np.maximum((1 - np.asarray(fraction)) * exchange_s, exchange_s - compute_s)
