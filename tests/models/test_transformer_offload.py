"""An optimiser on the host: what a device's step moves, and over which link."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.models.layouts import Layouts
from planner.models.memory import Host, offload_s, state_parameters
from planner.zoo.transformers import row

GPT = row("gpt3-13b").transformer
MOE = row("mixtral-8x7b").transformer


def test_one_device_keeps_the_state_of_every_parameter() -> None:
    for network in (GPT, MOE):
        padding = 128 * network.hidden_size * 2  # of the vocabulary, which is padded on both ends
        held = float(state_parameters(network, Layouts.one())[0])
        assert network.num_parameters <= held <= network.num_parameters + padding


@given(data=st.sampled_from([2, 4, 8]), context=st.sampled_from([1, 2]), expert=st.sampled_from([1, 2, 4]))
def test_zero_shares_the_state_out_to_the_last_parameter(data: int, context: int, expert: int) -> None:
    expert = min(expert, data * context)
    whole, spread = (
        state_parameters(MOE, Layouts.one(data=data, context=context, expert=expert, zero=zero))[0] for zero in (0, 1)
    )
    alone = state_parameters(MOE, Layouts.one())[0]
    assert spread * data * context == pytest.approx(alone)
    assert whole >= spread


@given(link=st.floats(1e9, 1e12), memory=st.floats(1e9, 1e12))
def test_seconds_are_those_of_both_ways_and_of_the_hosts_memory(link: float, memory: float) -> None:
    layout, host = Layouts.one(zero=1, data=8), Host(link_bytes_per_s=link, memory_bytes_per_s=memory)
    number = state_parameters(GPT, layout)
    seconds = offload_s(GPT, layout, host, gradient_bytes=4, weight_bytes=2, optimizer_bytes=30)
    assert seconds == pytest.approx(number * 6 / link + number * 30 / memory)
    quicker = offload_s(
        GPT,
        layout,
        Host(link_bytes_per_s=2 * link, memory_bytes_per_s=2 * memory),
        gradient_bytes=4,
        weight_bytes=2,
        optimizer_bytes=30,
    )
    assert np.all(quicker == pytest.approx(seconds / 2))
