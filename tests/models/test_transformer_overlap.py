import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import Floats
from planner.models.transformer_events import Events
from planner.models.transformer_overlap import buckets_exposed_s, fraction_exposed_s, layers_s, ring_exposed_s

seconds = st.floats(0, 100)
counts = st.integers(1, 12)


def array(value: float) -> Floats:
    return np.array([float(value)])


def one(found: Floats) -> float:
    (value,) = found
    return float(value)


# -- limits: nothing to send, and nothing to hide behind ---------------------------------------------------------------


@given(seconds, counts, st.floats(0, 1))
def test_an_exchange_of_no_time_leaves_nothing_exposed(compute_s: float, number: int, fraction: float) -> None:
    assert one(buckets_exposed_s(array(0), array(compute_s), array(number))) == 0
    assert one(ring_exposed_s(array(0), array(compute_s), array(number))) == 0
    assert one(fraction_exposed_s(array(0), array(compute_s), fraction)) == 0
    assert one(layers_s(array(compute_s), array(0), array(0), array(number))) == pytest.approx(number * compute_s)


@given(seconds, counts, st.floats(0, 1))
def test_without_computing_all_of_an_exchange_is_exposed(exchange_s: float, number: int, fraction: float) -> None:
    assert one(buckets_exposed_s(array(exchange_s), array(0), array(number))) == pytest.approx(exchange_s)
    assert one(ring_exposed_s(array(exchange_s), array(0), array(number))) == pytest.approx(exchange_s)
    assert one(fraction_exposed_s(array(exchange_s), array(0), fraction)) == pytest.approx(exchange_s)
    together = layers_s(array(0), array(exchange_s), array(exchange_s), array(number))
    assert one(together) == pytest.approx(2 * number * exchange_s)


@given(seconds, seconds, st.floats(0, 1))
def test_no_more_than_the_stated_fraction_is_hidden(exchange_s: float, compute_s: float, fraction: float) -> None:
    exposed = one(fraction_exposed_s(array(exchange_s), array(compute_s), fraction))
    assert exposed >= (1 - fraction) * exchange_s * (1 - 1e-12)
    assert exchange_s - exposed <= compute_s + 1e-9


# -- against the simulation --------------------------------------------------------------------------------------------


@given(seconds, seconds, counts)
def test_buckets_agree_with_the_simulation(exchange_s: float, backward_s: float, number: int) -> None:
    events = Events()
    for index in range(number):
        events.add(("piece", index), backward_s / number, ["device"])
        events.add(("bucket", index), exchange_s / number, ["network"], after=[("piece", index)])
    end_s = max(events.run().values())
    exposed = one(buckets_exposed_s(array(exchange_s), array(backward_s), array(number)))
    assert end_s == pytest.approx(backward_s + exposed)


@given(seconds, seconds, seconds, counts)
def test_layers_agree_with_the_simulation_or_stay_less_than_one_layer_above_it(
    compute_s: float, before_s: float, after_s: float, number: int
) -> None:
    events = Events()
    for layer in range(number):
        if layer == 0:
            events.add(("before", 0), before_s, ["network"])
        events.add(("compute", layer), compute_s, ["device"], after=[("before", layer)])
        if layer + 1 < number:
            events.add(("before", layer + 1), before_s, ["network"])
        events.add(("after", layer), after_s, ["network"], after=[("compute", layer)])
    end_s = max(events.run().values())
    found = one(layers_s(array(compute_s), array(before_s), array(after_s), array(number)))
    assert end_s - 1e-9 <= found <= end_s + compute_s + 1e-9
    if compute_s >= before_s + after_s or after_s == 0:
        assert found == pytest.approx(end_s)


@given(seconds, seconds, st.integers(1, 8))
def test_a_ring_agrees_with_the_simulation(exchange_s: float, attention_s: float, context: int) -> None:
    events = Events()
    steps = context - 1
    for step in range(context):
        # A step's keys and values are there once those of the step before have been passed on and used.
        after = [("send", step - 1)] if step else []
        events.add(("attend", step), attention_s / context, ["device"], after=after)
        if step < steps:
            waits = [("attend", step - 1)] if step else []
            events.add(("send", step), exchange_s / steps, ["network"], after=waits)
    end_s = max(events.run().values())
    exchange = exchange_s if steps else 0.0
    exposed = one(ring_exposed_s(array(exchange), array(attention_s), array(context)))
    assert end_s == pytest.approx(attention_s + exposed)
