"""What a spec may say about layers: those of a network, and those that may take the place of others."""

from typing import Annotated, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from planner import data
from planner.spec_values import Bytes, Model, Name, Seconds, known, tag

__all__ = ["MOST_SUBSTITUTIONS", "BlockSpec", "LayerSpec", "RunSpec", "SubstitutionSpec"]

MOST_SUBSTITUTIONS = 6  # every subset of them is a network to plan


class LayerSpec(Model):
    """One layer, by multiply-adds or by measured seconds of a batch of ``dnn.profile_batch`` samples."""

    name: Name
    kind: Name = "operator"
    inputs: list[str] = []
    forward: Seconds | None = None
    backward: Seconds | None = None
    multiply_adds: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=True)] = 0
    parameters: Bytes = 0.0
    output: Bytes = 0.0
    in_place: bool = False


class RunSpec(Model):
    """All layers on any path from the first to the last."""

    first: Name
    last: Name


def _run(value: object) -> object:
    """Read ``[fc6, ..., fc8]`` as the first and the last layer of a run."""
    if isinstance(value, list) and len(value) == 3 and value[1] == "...":
        return {"first": value[0], "last": value[2]}
    return value


RunOf = Annotated[
    Annotated[list[Name], Field(min_length=1), Tag("<list>")] | Annotated[RunSpec, Tag("<mapping>")],
    Discriminator(tag),
    BeforeValidator(_run),
]


class BlockSpec(Model):
    """Layers that come in. Those that read no layer of the block read what the replaced ones read."""

    layers: Annotated[list[LayerSpec], Field(min_length=1)]
    source: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [layer.name for layer in self.layers]
        for layer in self.layers:
            if unknown := [name for name in layer.inputs if name not in names]:
                raise ValueError(
                    f"layer {layer.name!r} reads {unknown[0]!r}, which is not in the block. Leave out its inputs where "
                    f"it reads what the replaced layers read."
                )
            if layer.kind == "input":
                raise ValueError(f"layer {layer.name!r} is an input. Leave it out; the network has its own.")
        return self


class SubstitutionSpec(Model):
    """A run of layers, and the block that may take its place: a shipped one by name, or layers."""

    name: Name
    layers: RunOf
    by: Annotated[
        Annotated[Name, known(data.find_block), Tag("<name>")] | Annotated[BlockSpec, Tag("<mapping>")],
        Discriminator(tag),
    ]
