"""Mixers whose heads have a state, counted a second time: parameters, bytes that are kept, multiply-adds.

Forms by hand from the papers (Mamba-2: T. Dao and A. Gu, arXiv 2405.21060, section 6; gated delta rule: S. Yang et al.,
arXiv 2412.06464, section 3.3; lightning attention: Z. Qin et al., arXiv 2401.04658, algorithm 1); nothing is taken from
the cost model. All of it is of whole heads: a tensor degree divides it.
"""

from planner.transformer import Transformer

__all__ = ["scan_kept", "scan_multiply_adds", "scan_parameters", "scan_products"]


def scan_products(network: Transformer, mixer: str) -> list[float]:
    """Return the columns of the matrices that read the stream."""
    mamba, delta, linear = network.mamba, network.delta, network.linear
    if mixer == "mamba" and mamba is not None:
        inner = mamba.num_heads * mamba.head_size
        return [2.0 * inner + 2 * mamba.num_groups * mamba.state_size + mamba.num_heads]
    if mixer == "delta" and delta is not None:
        keys, values = delta.num_key_heads * delta.key_size, delta.num_value_heads * delta.value_size
        return [2.0 * keys + 2 * values + 2 * delta.num_value_heads]
    if mixer == "linear" and linear is not None:
        inner = linear.num_heads * linear.head_size
        return [3.0 * inner, *[float(inner)] * linear.has_gate]
    return []


def _inner(network: Transformer, mixer: str) -> float:
    """Return the width of all heads' output."""
    mamba, delta, linear = network.mamba, network.delta, network.linear
    if mixer == "mamba" and mamba is not None:
        return float(mamba.num_heads * mamba.head_size)
    if mixer == "delta" and delta is not None:
        return float(delta.num_value_heads * delta.value_size)
    return float(linear.num_heads * linear.head_size) if mixer == "linear" and linear is not None else 0.0


def scan_parameters(network: Transformer, mixer: str, tensor: int) -> tuple[list[float], float]:
    """Return the matrices of a mixer on one device, and its other parameters."""
    hidden, inner = network.hidden_size, _inner(network, mixer)
    matrices = [hidden * one / tensor for one in (*scan_products(network, mixer), inner)]
    mamba, delta = network.mamba, network.delta
    if mixer == "mamba" and mamba is not None:
        taps = (inner + 2 * mamba.num_groups * mamba.state_size) * (mamba.conv_kernel + mamba.has_conv_bias)
        return matrices, (taps + 3 * mamba.num_heads + inner) / tensor
    if mixer == "delta" and delta is not None:
        taps = (2 * delta.num_key_heads * delta.key_size + inner) * delta.conv_kernel
        return matrices, (taps + 2 * delta.num_value_heads) / tensor + delta.value_size
    return matrices, inner / tensor


def scan_kept(network: Transformer, mixer: str) -> tuple[float, float]:
    """Return the numbers a token that a mixer keeps beside its input, and the most that its backward pass makes anew.

    Mamba keeps what its first product makes, the scan's output and that of its norm. The delta rule keeps queries and
    keys as they are normed, too, what the convolution gives, and an inverse of a chunk's width for every head. Linear
    attention keeps its queries, keys and values before and behind the activation function.
    """
    made, inner = sum(scan_products(network, mixer)), _inner(network, mixer)
    mamba, delta, linear = network.mamba, network.delta, network.linear
    length = network.sequence_length
    if mixer == "mamba" and mamba is not None:
        chunk = min(mamba.chunk_size, length)
        convolved = inner + 2 * mamba.num_groups * mamba.state_size
        states = max(1, round(inner * mamba.state_size / chunk))
        return made + 2 * inner, 2 * convolved + mamba.num_groups * chunk + states + inner
    if mixer == "delta" and delta is not None:
        chunk, keys = min(delta.chunk_size, length), delta.num_value_heads * delta.key_size
        convolved = 2 * delta.num_key_heads * delta.key_size + inner
        states = max(1, round(keys * delta.value_size / chunk))
        kept = made + convolved + 2 * keys + delta.num_value_heads * chunk + 2 * inner
        return kept, (keys + inner) + (states + inner) + inner
    if mixer == "linear" and linear is not None:
        chunk = min(linear.chunk_size, length)
        states = max(1, round(inner * linear.head_size / chunk))
        gated = 2 * inner * linear.has_gate
        again = linear.num_heads * chunk + inner + states
        return 6 * inner + 2 * inner + gated, max(6 * inner, again, 3 * inner * linear.has_gate)
    return 0.0, 0.0


def scan_multiply_adds(network: Transformer, mixer: str) -> float:
    """Return those of a token forward, half of a chunk's square counted."""
    hidden, inner = network.hidden_size, _inner(network, mixer)
    found = hidden * (sum(scan_products(network, mixer)) + inner)
    mamba, delta, linear = network.mamba, network.delta, network.linear
    length = network.sequence_length
    if mixer == "mamba" and mamba is not None:
        half = min(mamba.chunk_size, length) / 2
        convolved = inner + 2 * mamba.num_groups * mamba.state_size
        found += mamba.conv_kernel * convolved + half * (mamba.num_groups * mamba.state_size + inner)
        return found + 2 * inner * mamba.state_size
    if mixer == "delta" and delta is not None:
        half, heads = min(delta.chunk_size, length) / 2, delta.num_value_heads
        convolved = 2 * delta.num_key_heads * delta.key_size + inner
        inside = half * heads * (3 * delta.key_size + 2 * delta.value_size)  # K K', Q K'; on K and V; on new values
        return found + delta.conv_kernel * convolved + inside + 3 * heads * delta.key_size * delta.value_size
    if mixer == "linear" and linear is not None:
        half = min(linear.chunk_size, length) / 2
        return found + 2 * half * inner + 2 * inner * linear.head_size
    return 0.0
