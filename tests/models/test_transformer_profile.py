"""Seconds of a transformer's layers, against the whole of the family hybrid on one device."""

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformer_rates_drawn import CONSTANTS, GPT, MIXTURE, RATES, SOFTWARE, figures_of

from planner.data import device
from planner.models.compute import DeviceRates
from planner.models.layouts import Layouts
from planner.models.tiers import Tier
from planner.models.transformer_time import iteration_times, transformer_profile
from planner.transformer import Transformer
from planner.zoo import build
from planner.zoo.transformers import dnn_of

ALL: dict[str, Any] = {"rates": RATES, "software": SOFTWARE, "constants": CONSTANTS}


@pytest.mark.parametrize("transformer", [GPT, MIXTURE], ids=["dense", "experts"])
@given(st.sampled_from([1, 2, 4, 8, 16]))
def test_the_layers_take_as_long_as_one_device_does_without_exchange(transformer: Transformer, microbatch: int) -> None:
    profile = transformer_profile(dnn_of(transformer, "drawn"), **ALL)
    alone = Layouts.one(microbatch=microbatch)
    whole = iteration_times(figures_of(transformer, tiers=(Tier(size=1, bandwidth_bytes_per_s=inf),), **ALL), alone)
    seconds = float(sum(one(microbatch) for one in profile.whole))
    assert seconds == pytest.approx(float(whole["compute"][0] + whole["launch"][0]))
    assert (profile.forward_s >= 0).all() and (profile.backward_s >= 0).all()
    assert (profile.forward_factors >= 1).all() and (profile.backward_factors >= 1).all()


def test_blocks_of_one_kind_take_equally_long() -> None:
    dnn = dnn_of(GPT, "drawn")
    profile = transformer_profile(dnn, **ALL)
    (run,) = dnn.repeats
    inside = slice(run.first, run.first + run.num_layers * run.count)
    blocks = profile.forward_s[inside].reshape(run.count, run.num_layers)
    assert np.allclose(blocks, blocks[0])
    assert blocks.sum() > 0.5 * profile.forward_s.sum()


def test_few_samples_of_a_small_network_take_longer_each() -> None:
    forward, backward = transformer_profile(build("bert-base"), **ALL).whole
    sample_s = (forward(np.array([1, 8, 64])) + backward(np.array([1, 8, 64]))) / [1, 8, 64]
    assert sample_s[0] > 1.05 * sample_s[1] and sample_s[1] >= sample_s[2]


def test_a_device_brings_its_peaks_and_the_fit_its_shares() -> None:
    shares = {"product_efficiency": 0.5, "memory_efficiency": 0.6, "attention_efficiency": 0.3}
    rates = DeviceRates.of(device("h100-sxm"), "bf16", shares)
    assert (rates.name, rates.peak_flop_per_s, rates.product_efficiency) == ("h100-sxm", 989e12, 0.5)
    assert rates.num_multiprocessors == 132


def test_a_network_of_other_layers_has_no_such_profile() -> None:
    with pytest.raises(ValueError, match="vgg16 is not known as a transformer"):
        transformer_profile(build("vgg16"), **ALL)
