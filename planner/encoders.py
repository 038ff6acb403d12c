"""What joins an encoder of images to a language model: the projector, which makes tokens of one of those of the other.

The encoder itself is a transformer that reads images (:class:`planner.transformer.Transformer`), with the projector as
its head. The parameters are counted here in closed form; :mod:`planner.models.operators` lists the operators.
"""

from typing import Literal

from planner.frozen import frozen

MOST_MERGED = 64
_MOST_WIDTH = 2**19

ProjectorNorm = Literal["none", "layer_norm", "rms_norm"]


@frozen
class Projector:
    """The head of an encoder: squares of its tokens become one, which a product or two turn into the model's width.

    LLaVA 1.5 has two products (H. Liu et al., arXiv 2310.03744, section 3.3), Qwen2.5-VL joins 2 x 2 tokens before
    such (S. Bai et al., arXiv 2502.13923, section 2.1), and Gemma 3 has the mean of 4 x 4 and one product (Gemma team,
    arXiv 2503.19786, section 2.2).
    """

    output_size: int  # width of the language model
    hidden_size: int | None = None  # width between two products; None where there is one product
    merge: int = 1  # tokens on each side of the square that becomes one
    # whether their mean becomes the one; else they stand beside one another, so that it is as much wider
    is_pooled: bool = False
    # norm, is_norm_first: before the products, and whether of the tokens before they are joined, rather than behind
    # that
    norm: ProjectorNorm = "none"
    is_norm_first: bool = False
    has_biases: bool = True  # whether the products have biases

    def __post_init__(self) -> None:
        for name, most in (("output_size", _MOST_WIDTH), ("hidden_size", _MOST_WIDTH), ("merge", MOST_MERGED)):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} of the projector is {value}. Write a whole number from 1 to {most}.")

    def joined_size(self, width: int) -> int:
        """Return the width of what the products read, of tokens of a width."""
        return width if self.is_pooled else width * self.merge**2

    def norm_size(self, width: int) -> int:
        """Return the width of the norm."""
        return width if self.is_norm_first else self.joined_size(width)

    @property
    def num_norm_vectors(self) -> int:
        """Vectors of the norm that are learned: a scale, and a shift of ``layer_norm``."""
        return {"none": 0, "rms_norm": 1, "layer_norm": 2}[self.norm]

    def products(self, width: int) -> tuple[tuple[int, int], ...]:
        """Return rows and columns of its matrices, in order."""
        joined = self.joined_size(width)
        if self.hidden_size is None:
            return ((joined, self.output_size),)
        return ((joined, self.hidden_size), (self.hidden_size, self.output_size))

    def num_parameters(self, width: int) -> int:
        """Return the parameters, of tokens of a width."""
        matrices = sum((rows + self.has_biases) * columns for rows, columns in self.products(width))
        return matrices + self.num_norm_vectors * self.norm_size(width)
