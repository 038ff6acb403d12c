"""What mixes the tokens of a layer where no attention does: state spaces, linear attention, the gated delta rule.

Each has heads, every one with a state of fixed size that the tokens of a sample pass one after another. Training runs
over chunks of tokens: inside a chunk by products of matrices, as attention does, and from chunk to chunk by the states.
The parameters are counted here in closed form; :mod:`planner.models.scans` lists the operators.
"""

from planner.frozen import frozen

MOST_STATES, MOST_KERNEL, MOST_CHUNK = 2**12, 2**6, 2**14
_MOST_HEADS, _MOST_WIDTH = 2**12, 2**17


def _check_counts(where: object, **most_of: int) -> None:
    """Refuse fields of an object that are no numbers from 1 to the most of each."""
    for name, most in most_of.items():
        value = getattr(where, name)
        if not 1 <= value <= most:
            raise ValueError(f"{name} is {value}. Write a whole number from 1 to {most}.")


@frozen
class Mamba:
    """Mamba-2: a structured state space (T. Dao and A. Gu, arXiv 2405.21060, section 7).

    One product makes of a token what is gated with (z), what goes in (x), two vectors of each group (B and C), and a
    step for each head; a short convolution over the tokens follows for x, B and C. A head's state is updated by B x
    and read by C. What comes out is gated and normed, and projected back.
    """

    # num_heads, head_size: heads, and the width of each: together the inner width
    num_heads: int
    head_size: int
    state_size: int  # numbers of the state for each number of a head
    num_groups: int = 1  # groups of heads that share B and C
    conv_kernel: int = 4  # tokens that the convolution reads
    chunk_size: int = 128  # tokens of a chunk
    has_conv_bias: bool = True  # whether the convolution adds a bias

    def __post_init__(self) -> None:
        _check_counts(self, num_heads=_MOST_HEADS, head_size=_MOST_WIDTH, state_size=MOST_STATES)
        _check_counts(self, num_groups=_MOST_HEADS, conv_kernel=MOST_KERNEL, chunk_size=MOST_CHUNK)
        if self.num_heads % self.num_groups:
            raise ValueError(
                f"the {self.num_heads} heads of Mamba are no multiple of its {self.num_groups} groups. "
                f"Write a number of groups that divides {self.num_heads}."
            )

    @property
    def inner_size(self) -> int:
        """Width of all heads."""
        return self.num_heads * self.head_size

    @property
    def conv_size(self) -> int:
        """Width of what the convolution reads: x, B and C."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def projected_size(self) -> int:
        """Width of what the first product makes: z, x, B, C, and the steps."""
        return self.inner_size + self.conv_size + self.num_heads

    def num_parameters(self, hidden_size: int) -> int:
        """Return the parameters: both products, the convolution, three numbers of each head, and the norm's scale."""
        convolution = self.conv_size * (self.conv_kernel + self.has_conv_bias)
        products = hidden_size * (self.projected_size + self.inner_size)
        return products + convolution + 3 * self.num_heads + self.inner_size


@frozen
class DeltaNet:
    """Gated delta networks (S. Yang et al., arXiv 2412.06464), as Qwen3-Next has them.

    One product makes queries, keys, values, what is gated with, and two numbers of each value's head: how much the
    state forgets, and how much it learns. A short convolution follows for the first three. A state learns by the
    difference between a value and what it would have given for the key.
    """

    # num_key_heads, num_value_heads: heads of queries and keys; and of values, each with a state. A key serves
    # ``num_value_heads / num_key_heads``
    num_key_heads: int
    num_value_heads: int
    # key_size, value_size: width of a head's query and key, and of its value
    key_size: int
    value_size: int
    conv_kernel: int = 4  # tokens that the convolution reads
    chunk_size: int = 64  # tokens of a chunk

    def __post_init__(self) -> None:
        _check_counts(self, num_key_heads=_MOST_HEADS, num_value_heads=_MOST_HEADS)
        _check_counts(self, key_size=MOST_STATES, value_size=MOST_STATES)
        _check_counts(self, conv_kernel=MOST_KERNEL, chunk_size=MOST_CHUNK)
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"the {self.num_value_heads} heads of values are no multiple of the {self.num_key_heads} heads of "
                f"keys. Write a number of these that divides {self.num_value_heads}."
            )

    @property
    def inner_size(self) -> int:
        """Width of all values."""
        return self.num_value_heads * self.value_size

    @property
    def conv_size(self) -> int:
        """Width of what the convolution reads: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_size + self.inner_size

    @property
    def projected_size(self) -> int:
        """Width of what the first product makes."""
        return self.conv_size + self.inner_size + 2 * self.num_value_heads

    def num_parameters(self, hidden_size: int) -> int:
        """Return the parameters: products, the convolution, two numbers of each value's head, and a head's norm."""
        products = hidden_size * (self.projected_size + self.inner_size)
        return products + self.conv_size * self.conv_kernel + 2 * self.num_value_heads + self.value_size


@frozen
class LinearAttention:
    """Linear attention with a decay for each head, as lightning attention has it (Z. Qin et al., arXiv 2401.04658).

    Queries, keys and values pass an activation function; a head's state is the sum of keys times values. What comes
    out passes a norm over all heads and, where there is one, a gate of the same width (MiniMax, arXiv 2501.08313).
    """

    # num_heads, head_size: heads, and the width of each query, key and value
    num_heads: int
    head_size: int
    chunk_size: int = 256  # tokens of a chunk
    has_gate: bool = True  # whether the output is gated

    def __post_init__(self) -> None:
        _check_counts(self, num_heads=_MOST_HEADS, head_size=MOST_STATES, chunk_size=MOST_CHUNK)

    @property
    def inner_size(self) -> int:
        """Width of all heads."""
        return self.num_heads * self.head_size

    @property
    def projected_size(self) -> int:
        """Width of queries, keys and values."""
        return 3 * self.inner_size

    def num_parameters(self, hidden_size: int) -> int:
        """Return the parameters: products, and the norm's scale."""
        return (4 + self.has_gate) * hidden_size * self.inner_size + self.inner_size


Scan = Mamba | DeltaNet | LinearAttention
