"""Products in eight and four bits: which operators have them, what they take, and what they leave as it was."""

from dataclasses import replace

import numpy as np
import pytest

from planner.data.devices import device
from planner.data.fits import transformer_rates
from planner.models.compute import Constants, DeviceRates, Software, Speeds, device_shares, head_s, layer_seconds
from planner.models.layouts import Layouts
from planner.models.low_precision import LOW_TYPES, NUMBER_TYPES, LowFigures, has_low_product, recipe_of, supports
from planner.models.operators import block_operators
from planner.zoo import transformers

_FITTED = transformer_rates()
_CONSTANTS = Constants(**_FITTED["constants"])
_SOFTWARE = Software(name="megatron-core", **_FITTED["software"]["megatron-core"])


def _rates(name: str, low: tuple[str, str] | None, wide_share: float = 0.0) -> DeviceRates:
    """Return a device's rates."""
    one = device(name)
    found = DeviceRates.of(one, "bf16", device_shares(one, "bf16", _FITTED))
    if low is None:
        return found
    products = LowFigures.of(_FITTED["low_precision"]).products(
        one, found.product_efficiency, low, program="megatron-core", has_fused_experts=True, wide_share=wide_share
    )
    return replace(found, low=products)


def _layer(rates: DeviceRates, name: str = "llama3-70b", kind: str = "dense") -> float:
    """Return the seconds of a layer, both ways."""
    network = transformers.row(name).transformer
    seconds = layer_seconds(
        network, kind, replace(Layouts.one(), sequence_parallel=np.array([False])), Speeds(rates, _SOFTWARE, _CONSTANTS)
    )
    return float((seconds.forward_s + seconds.backward_s)[0])


@pytest.mark.parametrize("low", [("fp8", "current"), ("fp8", "delayed"), ("fp8", "blockwise")])
def test_fp8_makes_large_layers_of_hopper_quicker_but_not_twice(low: tuple[str, str]) -> None:
    assert 1.2 < _layer(_rates("h100-sxm", None)) / _layer(_rates("h100-sxm", low)) < 2


def test_fewer_bits_are_quicker_on_blackwell() -> None:
    both = [_layer(_rates("gb200", low)) for low in (None, ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"))]
    assert both == sorted(both, reverse=True)
    assert len(set(both)) == 3


def test_a_scale_from_steps_before_saves_a_pass_over_the_tensor() -> None:
    current, delayed = (_layer(_rates("h100-sxm", ("fp8", recipe))) for recipe in ("current", "delayed"))
    assert delayed < current


def test_layers_in_bf16_lie_between_none_and_all() -> None:
    short, some, wide = (_layer(_rates("gb200", ("nvfp4", "nvfp4"), share)) for share in (0.0, 0.25, 1.0))
    assert wide == pytest.approx(_layer(_rates("gb200", None)))
    assert some == pytest.approx(0.75 * short + 0.25 * wide)


def test_experts_are_short_and_routers_and_attention_are_not() -> None:
    network = transformers.row("deepseek-v3").transformer
    short = {one.name for one in block_operators(network, "moe") if has_low_product(one)}
    assert {"attention.output", "feed_forward.experts.up", "feed_forward.shared.down"} <= short
    assert not {"feed_forward.router", "attention.scores", "attention.context"} & short


def test_the_head_does_not_know_of_short_products() -> None:
    network = transformers.row("llama3-70b").transformer
    found = {
        float(head_s(network, Layouts.one(), Speeds(_rates("gb200", low), _SOFTWARE, _CONSTANTS))[0])
        for low in (None, ("nvfp4", "nvfp4"))
    }
    assert len(found) == 1


def test_nothing_is_quicker_than_the_highest_rate() -> None:
    for low in (None, *NUMBER_TYPES):
        rates = _rates("gb300", low)
        network = transformers.row("llama3-70b").transformer
        flop = sum(one.forward_flop + one.backward_flop for one in block_operators(network, "dense"))
        assert _layer(rates) > flop / rates.most_flop_per_s


@pytest.mark.parametrize(
    ("name", "types"),
    [("a100-sxm4-80gb", ()), ("h100-sxm", ("fp8",)), ("mi300x", ("fp8",)), ("mi355x", ("fp8", "mxfp8"))]
    + [(name, LOW_TYPES) for name in ("b200-sxm", "b300-sxm", "gb200", "gb300")],
)
def test_devices_have_the_types_that_their_makers_say(name: str, types: tuple[str, ...]) -> None:
    assert tuple(one for one in LOW_TYPES if supports(device(name).peak_flop_per_s, name, one)) == types


def test_every_type_has_the_recipe_that_is_taken_by_default() -> None:
    assert {(name, recipe_of(name, None)) for name in LOW_TYPES} <= NUMBER_TYPES.keys()
