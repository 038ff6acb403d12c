"""The block ``dnn.frozen`` of a spec: parts of a transformer that are not trained, and what cannot have any."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from planner.cost import Profile
from planner.dnn import Dnn
from planner.question.source import nearest
from planner.question.values import Count, Model
from planner.trained import EMBEDDING, FROZEN_PARTS, Trained
from planner.zoo.transformers import dnn_of


def _part(name: str) -> str:
    """Return a part that can be frozen."""
    if name not in FROZEN_PARTS:
        raise ValueError(f"{name!r} is no part that can be frozen. {nearest(name, FROZEN_PARTS)}")
    return name


_Part = Annotated[str, AfterValidator(_part)]


def _short(value: object) -> object:
    """Read parts, or a number of layers, as the block that says them: ``frozen: [embedding]``, ``frozen: 20``."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return {"layers": value}
    return {"parts": [value] if isinstance(value, str) else value} if isinstance(value, str | list) else value


class FrozenSpec(Model):
    """Parts of the network that are not trained."""

    layers: Count | None = None
    parts: Annotated[list[_Part], Field(min_length=1)] | None = None


FrozenOf = Annotated[FrozenSpec, BeforeValidator(_short, json_schema_input_type=int | str | list[str] | FrozenSpec)]


def frozen(spec: FrozenSpec, dnn: Dnn, profile: Profile | None) -> tuple[Dnn, dict[str, Any]]:
    """Return the network with frozen parts, and the block that says them whole.

    Raises
    ------
    ValueError
        For a network that is no transformer, whose seconds were measured, that lacks a part, or trains nothing.
    """
    network = dnn.transformer
    if network is None or profile is not None:
        why = "its seconds were measured, and those of what remains to be trained are not known"
        if network is None:
            why = "it is not known as a transformer, whose parts are counted"
        raise ValueError(f"{dnn.name} cannot have frozen parts: {why}. Leave frozen out; or name a transformer.")
    if not (spec.layers or spec.parts):
        raise ValueError("it freezes nothing. Write layers: 2, or parts: [embedding], say; or leave frozen out.")
    parts = [one for one in dict.fromkeys(spec.parts or []) if one != EMBEDDING or not spec.layers]
    trained = Trained(adapters=network.fine_tuning, frozen_layers=spec.layers or 0, frozen_parts=tuple(parts))
    block: dict[str, Any] = {"layers": spec.layers} if spec.layers else {}
    block |= {"parts": parts} if parts else {}
    found = dnn_of(replace(network, trained=trained), dnn.name, source=dnn.source, dataset_samples=dnn.dataset_samples)
    return found, block
