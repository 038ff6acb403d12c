"""What a transformer computes beside its sizes: read from a spec, written back, and of no cost."""

from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import ValidationError

from planner.models.operators import parts
from planner.numerics import PLAIN, Numerics, Rotary, RotaryScaling, Routing, block_of, part_of, routing_of
from planner.question.blocks import TransformerSpec
from planner.question.transformer import NumericsSpec, RotaryScalingSpec, RotarySpec, RoutingSpec
from planner.transformer_parts import Experts
from planner.zoo import transformers

SIZES: dict[str, Any] = {"layers": 2, "hidden": 8, "heads": 2, "vocabulary": 10, "sequence_length": 4}
EXPERTS: dict[str, Any] = {"count": 4, "top_k": 2, "size": 8}
SCALED = RotaryScaling(kind="llama3", factor=8.0, original_length=8192)
OTHER: dict[str, Any] = {
    "rotary": Rotary(
        base=5e5, local_base=1e4, fraction=0.5, is_interleaved=True, without_every=4, longest=9, scaling=SCALED
    ),
    "numerics": Numerics(norm_epsilon=1e-6, activation="relu_squared", logit_softcap=30.0, has_zero_centred_norms=True),
}
ROUTING = Routing(
    score="sigmoid", scale=2.5, auxiliary_loss="sequence", auxiliary_coefficient=1e-4, bias_update_rate=0.0
)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [(RotarySpec, Rotary), (RotaryScalingSpec, RotaryScaling), (NumericsSpec, Numerics), (RoutingSpec, Routing)],
)
def test_a_spec_has_a_key_for_every_field(spec: Any, kind: Any) -> None:
    words = {one.name.removeprefix("is_").removeprefix("has_") for one in fields(kind)}
    assert set(spec.model_fields) == words


@pytest.mark.parametrize("has_bias", [False, True])
def test_what_a_spec_says_comes_back_in_its_block(has_bias: bool) -> None:
    experts = Experts(num_experts=4, top_k=2, expert_size=8, has_router_bias=has_bias, routing=ROUTING)
    plain = transformers.transformer_of({**SIZES, "positions": "rotary"})
    given = replace(plain, experts=experts, **OTHER)
    block = transformers.block_of(given)
    assert TransformerSpec.model_validate(block).build() == given
    assert isinstance(block["rotary"], dict)
    assert block["rotary"]["scaling"] == {"kind": "llama3", "factor": 8.0, "original_length": 8192}
    assert not {"rotary", "numerics"} & transformers.block_of(plain).keys()


def test_a_router_with_a_bias_balances_by_it() -> None:
    def routing(**more: Any) -> Routing:
        experts = transformers.transformer_of({**SIZES, "experts": {**EXPERTS, **more}}).experts
        assert experts is not None
        return experts.routing

    assert routing() == Routing()
    assert routing(router_bias=True) == routing_of(has_router_bias=True)
    found = routing(router_bias=True, routing={"scale": 2.5})
    assert (found.score, found.scale, found.auxiliary_loss, found.bias_update_rate) == ("sigmoid", 2.5, "none", 1e-3)


def test_they_change_neither_parameters_nor_operators() -> None:
    plain = transformers.row("mixtral-8x7b").transformer
    assert plain.experts is not None
    other = replace(plain, experts=replace(plain.experts, routing=ROUTING), **OTHER)
    assert other != plain
    assert other.num_parameters == plain.num_parameters
    assert parts(other) == parts(plain)


def test_the_activation_follows_from_the_gate() -> None:
    assert transformers.transformer_of(SIZES).activation == "gelu"
    assert transformers.transformer_of({**SIZES, "gated": True}).activation == "silu"
    assert transformers.transformer_of({**SIZES, "numerics": {"activation": "relu"}}).activation == "relu"


def test_only_rotary_positions_have_angles() -> None:
    assert transformers.transformer_of(SIZES).rotary is None
    assert transformers.transformer_of({**SIZES, "positions": "rotary"}).rotary == Rotary()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rotary": {"base": 5e5}}, "positions are 'learned', and rotary describes others"),
        ({"positions": "rotary", "rotary": {"scaling": {"kind": "yarn", "factor": 4}}}, "needs original_length"),
        (
            {
                "positions": "rotary",
                "rotary": {"scaling": {"kind": "llama3", "factor": 8, "original_length": 8, "low_frequency_factor": 5}},
            },
            "low_frequency_factor 5 is above high_frequency_factor 4",
        ),
        ({"positions": "rotary", "rotary": {"fraction": 2}}, "less than or equal to 1"),
        ({"numerics": {"activation": "swish"}}, "'silu'"),
        ({"experts": {**EXPERTS, "routing": {"score": "top"}}}, "'softmax' or 'sigmoid'"),
        ({"experts": {**EXPERTS, "routing": {"z_loss": -1}}}, "greater than or equal to 0"),
        ({"numerics": {"epsilon": 1}}, "Extra inputs"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as error:
        TransformerSpec.model_validate({**SIZES, **more})
    assert words in str(error.value)


def test_figures_beyond_all_reason_are_refused_without_a_spec() -> None:
    with pytest.raises(ValueError, match="base is nan"):
        Rotary(base=float("nan"))
    with pytest.raises(ValueError, match=r"fraction is 1\.5"):
        Rotary(fraction=1.5)
    with pytest.raises(ValueError, match="norm_epsilon is 0"):
        Numerics(norm_epsilon=0)


def test_a_part_is_what_its_block_says() -> None:
    assert part_of(PLAIN, block_of(OTHER["numerics"])) == OTHER["numerics"]
    assert part_of(Rotary(), block_of(OTHER["rotary"])) == OTHER["rotary"]
