"""Bytes on one device of data-parallel training."""

from dataclasses import dataclass

from planner.dnn import Dnn

__all__ = ["OPTIMIZER_BYTES", "MemoryUse", "Precision", "data_parallel_memory"]

_STATISTIC_BYTES = 4  # batch-norm statistics stay in fp32
# State per parameter beyond the weight: none; one fp32 momentum; two fp32 moments.
OPTIMIZER_BYTES = {"sgd": 0, "momentum": 4, "adam": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes of one number: as weight, as gradient, as activation; master copy and optimiser state per parameter.

    Mixed precision keeps 2 + 2 + 4 + 8 = 16 bytes a parameter with Adam (S. Rajbhandari et al., SC20,
    arXiv:1910.02054); fp32 keeps 4 + 4 + 0 + 8.
    """

    weight_bytes: int
    gradient_bytes: int
    activation_bytes: int
    master_bytes: int
    optimizer_bytes: int

    @classmethod
    def of(cls, dtype: str, optimizer: str) -> "Precision":
        """Return the precision of a data type (fp32 or tf32; fp16 or bf16 for mixed) and an optimiser."""
        is_mixed = dtype in ("fp16", "bf16")
        size = 2 if is_mixed else 4
        return cls(
            weight_bytes=size,
            gradient_bytes=size,
            activation_bytes=size,
            master_bytes=4 if is_mixed else 0,
            optimizer_bytes=OPTIMIZER_BYTES[optimizer],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes on one device; ``activations_per_sample_bytes`` is multiplied by the samples in flight."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_per_sample_bytes: int
    reserve_bytes: float

    @property
    def fixed_bytes(self) -> float:
        """What is there whatever the batch."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.reserve_bytes

    def total_bytes(self, num_samples: int) -> float:
        """Return the bytes with ``num_samples`` in flight."""
        return self.fixed_bytes + num_samples * self.activations_per_sample_bytes

    def terms_bytes(self, num_samples: int, *, limit_bytes: float) -> dict[str, float]:
        """Return every term with ``num_samples`` in flight, their total, and what a device may hold."""
        terms: dict[str, float] = {
            "weights": self.weights_bytes,
            "gradients": self.gradients_bytes,
            "optimizer": self.optimizer_bytes,
            "activations": self.activations_per_sample_bytes * num_samples,
            "reserve": self.reserve_bytes,
        }
        return {**terms, "total": sum(terms.values()), "limit": limit_bytes}

    def most_samples(self, limit_bytes: float) -> int:
        """Return how many samples fit at a time; 0 where not even one does."""
        if self.fixed_bytes + self.activations_per_sample_bytes > limit_bytes:
            return 0
        if not self.activations_per_sample_bytes or limit_bytes == float("inf"):
            return 2**62
        return int((limit_bytes - self.fixed_bytes) // self.activations_per_sample_bytes)


def data_parallel_memory(dnn: Dnn, precision: Precision, *, reserve_bytes: float = 0.0) -> MemoryUse:
    """Return what one device holds: every weight, its gradient, the optimiser's state, and activations.

    Every output is kept for the backward pass, except of operators that work in place; fusion buffers hold the
    gradients themselves. Leaves out workspaces and the framework's own context: give them as ``reserve_bytes``.
    """
    per_parameter = precision.master_bytes + precision.optimizer_bytes
    return MemoryUse(
        weights_bytes=dnn.num_trainable * precision.weight_bytes + dnn.num_moving * _STATISTIC_BYTES,
        gradients_bytes=dnn.num_trainable * precision.gradient_bytes,
        optimizer_bytes=dnn.num_trainable * per_parameter,
        activations_per_sample_bytes=dnn.num_stored_elements * precision.activation_bytes,
        reserve_bytes=reserve_bytes,
    )
