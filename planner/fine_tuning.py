"""Fine-tuning by adapters: which matrices get one, and of what rank.

LoRA keeps a matrix of ``n x m`` numbers as it is and trains two thin ones beside it, ``n x r`` and ``r x m``, whose
product is added, times ``alpha / r`` (E. J. Hu et al., arXiv 2106.09685, section 4.1). QLoRA does the same beside
matrices that are kept in four bits, and turned into two bytes whenever they are multiplied (T. Dettmers et al., arXiv
2305.14314, section 3). All else is frozen: embedding, norms, biases, logits.
"""

from dataclasses import dataclass
from typing import Literal

FineTuningMethod = Literal["lora", "qlora"]
# By the names of a spec those of Hugging Face's modules, and of Megatron's; ``qkv`` and ``gate_up`` are one matrix with
# one adapter (Megatron), ``query``, ``gate`` and the like parts of it with one each (Hugging Face).
TARGETS = ("qkv", "query", "key", "value", "output", "gate_up", "gate", "up", "down")
SYNONYMS = {
    **{"q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "output"},
    **{"gate_proj": "gate", "up_proj": "up", "down_proj": "down"},
    **{"q": "query", "k": "key", "v": "value"},
    **{"linear_qkv": "qkv", "linear_proj": "output", "linear_fc1": "gate_up", "linear_fc2": "down"},
}
# The same of both programs, for launch files; what is no whole matrix of one has no name there.
MODULES = {
    **{"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"},
    **{"gate": "gate_proj", "up": "up_proj", "down": "down_proj"},
}
MEGATRON_MODULES = {
    **{"qkv": "linear_qkv", "output": "linear_proj", "gate_up": "linear_fc1", "up": "linear_fc1", "down": "linear_fc2"},
}
_WHOLE = {"qkv": ("query", "key", "value"), "gate_up": ("gate", "up")}
MOST_RANK = 2**12
# Of a number in four bits: a scale of one byte for each 64, and one of four bytes for 256 of these (arXiv 2305.14314,
# section 3, "double quantization").
QUANTISED_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """Adapters of a transformer.

    Attributes
    ----------
    method
        ``lora``; or ``qlora``: with the matrices of all blocks in four bits.
    rank, alpha
        ``r`` and ``alpha``; the latter alters no second and no byte.
    targets
        Of :data:`TARGETS`.
    """

    method: FineTuningMethod
    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= MOST_RANK:
            raise ValueError(f"rank is {self.rank}. Write a whole number from 1 to {MOST_RANK}.")
        if unknown := [name for name in self.targets if name not in TARGETS]:
            raise ValueError(f"{unknown[0]!r} is no matrix that an adapter stands beside. Known: {', '.join(TARGETS)}.")
        for whole, parts in _WHOLE.items():
            if whole in self.targets and (both := [one for one in parts if one in self.targets]):
                raise ValueError(f"{whole} holds {both[0]}, and each has an adapter. Keep one of them.")

    @property
    def is_quantised(self) -> bool:
        """Whether the matrices of blocks are kept in four bits."""
        return self.method == "qlora"

    @property
    def modules(self) -> tuple[str, ...]:
        """The matrices by the names of Hugging Face's modules, of which a whole one is several."""
        names = [part for name in self.targets for part in _WHOLE.get(name, (name,))]
        return tuple(MODULES[name] for name in names)

    @property
    def words(self) -> str:
        """``LoRA of rank 16 beside qkv and output``."""
        name = {"lora": "LoRA", "qlora": "QLoRA"}[self.method]
        *first, last = self.targets
        return f"{name} of rank {self.rank} beside {', '.join(first)}{' and ' * bool(first)}{last}"
