"""What a spec may say about layers: those of a network, and those that may take the place of others."""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from planner import data
from planner.dnn import MOST_LAYERS, Layer, Tensor, Window
from planner.spec.values import Bytes, Count, Model, Name, Seconds, Text, known, tag

__all__ = [
    "ELEMENT_BYTES",
    "MOST_SUBSTITUTIONS",
    "BlockSpec",
    "LayerSpec",
    "RepeatSpec",
    "RunSpec",
    "SubstitutionSpec",
    "TensorSpec",
    "WindowSpec",
]

ELEMENT_BYTES = 4  # a layer's bytes, where it gives no shape and no tensors, are of fp32

MOST_SUBSTITUTIONS = 6  # every subset of them is a network to plan


class TensorSpec(Model):
    """A stored array of a layer; see :class:`planner.dnn.Tensor`."""

    name: Name
    elements: Count
    role: Literal["weight", "bias", "scale", "shift", "moving"] = "weight"


class WindowSpec(Model):
    """What an output of a convolution or a pool reads; see :class:`planner.dnn.Window`."""

    kernel: Count
    stride: Count = 1
    padding: Annotated[int, Field(ge=0, strict=True)] = 0


class LayerSpec(Model):
    """One layer, by multiply-adds or by measured seconds of a batch of ``dnn.profile_batch`` samples.

    Its size is said by ``output`` and ``parameters``, bytes of fp32, or by ``shape`` and ``tensors``, in elements.
    """

    name: Name
    kind: Name = "operator"
    inputs: list[Name] = []
    forward: Seconds | None = None
    backward: Seconds | None = None
    multiply_adds: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False, strict=True)] = 0
    parameters: Bytes = 0.0
    output: Bytes = 0.0
    shape: Annotated[list[Count], Field(min_length=1, max_length=8)] | None = None
    tensors: list[TensorSpec] = []
    window: WindowSpec | None = None
    in_place: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shape is not None and self.output:
            raise ValueError("shape and output both say how large the output is. Keep one of them.")
        if self.tensors and self.parameters:
            raise ValueError("tensors and parameters both say what is trained. Keep one of them.")
        return self

    def build(self) -> Layer:
        """Return the layer of one sample."""
        num_parameters = round(self.parameters / ELEMENT_BYTES)
        whole = (Tensor(name=f"{self.name}.parameters", num_elements=num_parameters),) if num_parameters else ()
        given = tuple(Tensor(name=one.name, num_elements=one.elements, role=one.role) for one in self.tensors)
        return Layer(
            name=self.name,
            kind=self.kind,
            output_shape=(round(self.output / ELEMENT_BYTES),) if self.shape is None else tuple(self.shape),
            num_multiply_adds=int(self.multiply_adds),
            tensors=given or whole,
            is_in_place=self.in_place,
            window=None if self.window is None else Window(**self.window.model_dump()),
        )


class RepeatSpec(Model):
    """Consecutive layers that are copies of one block; see :class:`planner.dnn.Repeat`."""

    first: Annotated[int, Field(ge=0, strict=True)]
    layers: Count
    count: Count
    kind: Name = "block"


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

    layers: Annotated[list[LayerSpec], Field(min_length=1, max_length=MOST_LAYERS)]
    source: Text = ""

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
