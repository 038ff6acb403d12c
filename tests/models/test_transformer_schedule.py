import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_steps import StageTimes, simulate_step

from planner.cost import Floats
from planner.models.layouts import Layouts, Schedule
from planner.models.schedule import PipelineTimes, simulate
from planner.models.tiers import Tier, groups_of
from planner.models.transformer_communication import (
    communication_times,
    layer_communication,
    pipeline_communication,
    replica_communication,
    replica_times,
)
from planner.models.transformer_schedule import Stages, lower_bound_s, order_name, step_s
from planner.transformer import Transformer

CLOSED = (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1)  # those with closed forms


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One pipeline: seconds of a device between the ends, and how much more each end takes."""

    schedule: Schedule
    pipeline: int
    num_microbatches: int
    interleave: int = 1
    forward_s: float = 3.0
    backward_s: float = 6.0
    weight_gradient_s: float = 3.0
    first_s: tuple[float, float] = (0.0, 0.0)
    last_s: tuple[float, float] = (0.0, 0.0)
    transfer_s: float = 0.0
    is_blocking: bool = False

    @property
    def layout(self) -> Layouts:
        return Layouts.one(
            pipeline=self.pipeline,
            num_microbatches=self.num_microbatches,
            interleave=self.interleave,
            schedule=int(self.schedule),
        )

    @property
    def stages(self) -> Stages:
        return Stages.of(
            self.layout,
            array(self.forward_s),
            array(self.backward_s),
            first_extra_s=(array(self.first_s[0]), array(self.first_s[1])),
            last_extra_s=(array(self.last_s[0]), array(self.last_s[1])),
            weight_gradient_s=array(self.weight_gradient_s),
            transfer_s=array(self.transfer_s),
            is_blocking=self.is_blocking,
        )

    @property
    def step_s(self) -> float:
        return one(step_s(self.stages, self.layout))

    @property
    def bound_s(self) -> float:
        return one(lower_bound_s(self.stages, self.layout))

    def by_chunk(self) -> tuple[list[float], list[float], float]:
        """Forward and backward of every chunk, and the part of a backward that is put off."""
        number = self.pipeline * self.interleave
        apart = self.weight_gradient_s if self.schedule is Schedule.ZB_H1 else 0.0
        forward = [self.forward_s / self.interleave] * number
        backward = [(self.backward_s - apart) / self.interleave] * number
        for index, extra in ((0, self.first_s), (-1, self.last_s)):
            forward[index] += extra[0]
            backward[index] += extra[1]
        return forward, backward, apart

    @property
    def simulated_s(self) -> float:
        forward, backward, apart = self.by_chunk()
        stages = [
            StageTimes(forward_s=f, backward_s=b, weight_gradient_s=apart)
            for f, b in zip(forward, backward, strict=True)
        ]
        return simulate_step(
            stages,
            self.transfer_s,
            num_microbatches=self.num_microbatches,
            schedule=self.schedule,
            interleave=self.interleave,
            is_blocking=self.is_blocking,
        )


def array(value: float) -> Floats:
    return np.array([float(value)])


def one(found: Floats) -> float:
    (value,) = found
    return float(value)


@st.composite
def questions(draw: st.DrawFn, *, is_equal: bool = False, schedule: Schedule | None = None) -> Question:
    """Small pipelines of every schedule; a transfer is no longer than a forward of one chunk."""
    chosen = draw(st.sampled_from(CLOSED)) if schedule is None else schedule
    pipeline = draw(st.integers(1, 7))
    interleave = draw(st.integers(1, 3)) if chosen is Schedule.ONE_F_ONE_B and pipeline > 1 else 1
    turns = draw(st.integers(1, 20 if interleave == 1 else 5))
    forward_s = draw(st.integers(2, 6))
    weights_s = draw(st.integers(1, forward_s))
    extra = st.just((0.0, 0.0)) if is_equal else st.sampled_from(EXTRAS)
    return Question(
        schedule=chosen,
        pipeline=pipeline,
        num_microbatches=turns * (pipeline if interleave > 1 else 1),
        interleave=interleave,
        forward_s=float(forward_s),
        backward_s=float(forward_s + draw(st.integers(0, 4)) + weights_s),
        weight_gradient_s=float(weights_s),
        first_s=draw(extra),
        last_s=draw(extra),
        transfer_s=draw(st.sampled_from([0.0, 0.25, 0.5])),
        is_blocking=draw(st.booleans()),
    )


# A heavier end, and one that has a quarter less.
EXTRAS = [(0.0, 0.0), (0.1, 0.1), (0.5, 1.0), (1.0, 2.0), (-0.1, -0.3)]


# -- the simulation itself ---------------------------------------------------------------------------------------------


@given(questions())
def test_the_longest_path_of_every_schedule_agrees_with_the_event_simulation(question: Question) -> None:
    forward, backward, apart = question.by_chunk()
    sent = [question.transfer_s] * (len(forward) - 1)
    run = simulate(
        PipelineTimes(
            forward_s=forward, backward_s=backward, output_s=sent, error_s=sent, weights_s=[apart] * len(forward)
        ),
        schedule=order_name(question.schedule, question.interleave),
        num_microbatches=question.num_microbatches,
        chunks_per_device=question.interleave,
        is_blocking=question.is_blocking,
    )
    assert question.simulated_s == pytest.approx(run.makespan_s)


# -- closed forms ------------------------------------------------------------------------------------------------------


@given(questions(is_equal=True))
def test_equal_stages_agree_with_the_simulation_exactly(question: Question) -> None:
    if question.schedule is Schedule.ZB_H1 and (question.transfer_s or question.num_microbatches < question.pipeline):
        return
    assert question.step_s == pytest.approx(question.simulated_s)


@given(questions(schedule=Schedule.GPIPE))
def test_gpipe_agrees_with_the_simulation_exactly_whatever_the_stages(question: Question) -> None:
    assert question.step_s == pytest.approx(question.simulated_s)


@given(questions())
def test_no_closed_form_is_above_the_simulation_nor_far_below_it(question: Question) -> None:
    simulated_s = question.simulated_s
    assert question.step_s <= simulated_s * (1 + 1e-9)
    assert question.step_s >= simulated_s * 0.9


@given(questions(), st.floats(1, 30))
def test_transfers_longer_than_any_forward_put_no_form_above_the_simulation(
    question: Question, transfer_s: float
) -> None:
    longer = replace(question, transfer_s=transfer_s)
    assert longer.step_s <= longer.simulated_s * (1 + 1e-9)
    assert longer.bound_s <= longer.simulated_s * (1 + 1e-9)


@given(questions())
def test_the_bound_is_below_every_schedule(question: Question) -> None:
    assert question.bound_s <= question.step_s * (1 + 1e-9)
    assert question.bound_s <= question.simulated_s * (1 + 1e-9)


@pytest.mark.parametrize("pipeline", [1, 2, 3, 5])
@pytest.mark.parametrize("interleave", [1, 2])
def test_the_bound_of_equal_stages_is_the_way_there_the_work_and_the_way_back(pipeline: int, interleave: int) -> None:
    question = Question(
        schedule=Schedule.ONE_F_ONE_B,
        pipeline=pipeline,
        interleave=interleave,
        num_microbatches=2 * pipeline,
        transfer_s=0.25,
    )
    way_s = (pipeline - 1) * (9.0 / interleave + 2 * 0.25)
    assert question.bound_s == pytest.approx(2 * pipeline * 9.0 + way_s)


def realistic(schedule: Schedule) -> list[Question]:
    """Ends and transfers of real networks: the embedding is 1 % of a stage, the head up to a third, a transfer 2 %."""
    found = []
    for pipeline in (2, 3, 4, 8):
        for turns in (1, 2, 3, 6):
            for interleave in (1, 2, 3) if schedule is Schedule.ONE_F_ONE_B else (1,):
                for head in (0.0, 0.1, 0.33):
                    question = Question(
                        schedule=schedule,
                        pipeline=pipeline,
                        num_microbatches=turns * pipeline,
                        interleave=interleave,
                        first_s=(0.03, 0.06),
                        last_s=(3 * head, 6 * head),
                        transfer_s=0.06 / interleave,
                    )
                    found.append(question)
    return found


@pytest.mark.parametrize(
    ("schedule", "most"), [(Schedule.GPIPE, 1e-12), (Schedule.ONE_F_ONE_B, 0.001), (Schedule.ZB_H1, 1e-12)]
)
def test_with_the_ends_of_real_networks_the_forms_stay_within_the_stated_error(schedule: Schedule, most: float) -> None:
    below = [1 - question.step_s / question.simulated_s for question in realistic(schedule)]
    assert max(below) <= most
    assert min(below) >= -1e-9


@pytest.mark.parametrize(
    ("pipeline", "interleave", "turns", "forward_s", "backward_s", "last_s"),
    [
        (3, 2, 2, 6.0, 3.0, (-1.0, -1.0)),
        (4, 2, 2, 6.0, 4.0, (-1.0, -1.0)),
        (4, 2, 4, 8.0, 2.0, (-2.0, -1.0)),
        (5, 3, 2, 6.0, 3.0, (-1.0, -0.5)),
    ],
)
def test_a_lighter_last_stage_waits_for_the_forwards_of_the_one_before_it(
    pipeline: int, interleave: int, turns: int, forward_s: float, backward_s: float, last_s: tuple[float, float]
) -> None:
    question = Question(
        schedule=Schedule.ONE_F_ONE_B,
        pipeline=pipeline,
        interleave=interleave,
        num_microbatches=turns * pipeline,
        forward_s=forward_s,
        backward_s=backward_s,
        last_s=last_s,
    )
    # Backward is quick, so that the stage before the last is busy with forwards when its first error comes.
    assert question.step_s == pytest.approx(question.simulated_s)


def test_a_heavier_first_stage_keeps_the_one_before_a_lighter_last_waiting_for_transfers_both_ways() -> None:
    question = Question(
        schedule=Schedule.ONE_F_ONE_B,
        pipeline=4,
        interleave=2,
        num_microbatches=8,
        first_s=(0.5, 1.0),
        last_s=(-1.0, -0.5),
        transfer_s=0.25,
    )
    assert question.step_s == pytest.approx(question.simulated_s)


# -- what the literature says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interleave", [1, 2, 4])
def test_the_bubble_of_equal_stages_is_that_of_the_literature(interleave: int) -> None:
    question = Question(schedule=Schedule.ONE_F_ONE_B, pipeline=8, num_microbatches=32, interleave=interleave)
    ideal_s = 32 * 9.0
    assert question.step_s / ideal_s - 1 == pytest.approx(7 / (interleave * 32))


def test_the_bubble_of_the_zero_bubble_schedule_is_that_of_the_literature() -> None:
    question = Question(schedule=Schedule.ZB_H1, pipeline=8, num_microbatches=32, weight_gradient_s=2.0)
    # (p - 1) (F + B - W), with B the backward without the gradient of the weights.
    assert question.step_s == pytest.approx(32 * 9.0 + 7 * (3.0 + 4.0 - 2.0))


@pytest.mark.parametrize("microbatches", [1, 3, 8, 50])
def test_transfers_of_equal_stages_lengthen_a_step_by_the_known_form(microbatches: int) -> None:
    question = Question(schedule=Schedule.ONE_F_ONE_B, pipeline=4, num_microbatches=microbatches, transfer_s=0.5)
    rounds = microbatches + 3
    assert question.step_s == pytest.approx(rounds * 9.0 + 2 * 0.5 * (rounds - math.ceil(rounds / 4)))


def test_the_schedule_of_one_device_is_its_work() -> None:
    for schedule in CLOSED:
        question = Question(
            schedule=schedule, pipeline=1, num_microbatches=5, first_s=(1.0, 2.0), last_s=(0.5, 0.5), transfer_s=0.7
        )
        assert question.step_s == pytest.approx(5 * (9.0 + 4.0))


def test_a_zero_bubble_schedule_has_no_chunks() -> None:
    question = Question(schedule=Schedule.ZB_H1, pipeline=2, num_microbatches=4, interleave=2)
    assert question.step_s == math.inf


# -- properties --------------------------------------------------------------------------------------------------------


@given(questions(), st.sampled_from(["forward_s", "transfer_s"]), st.floats(1, 2))
def test_a_step_is_monotone_in_its_times_and_doubles_with_them(question: Question, name: str, factor: float) -> None:
    stages, layout = question.stages, question.layout
    longer = replace(question, **{name: factor * getattr(question, name)})
    assert longer.step_s >= question.step_s * (1 - 1e-9)
    doubled = Stages.of(
        layout,
        array(2 * question.forward_s),
        array(2 * question.backward_s),
        first_extra_s=(array(2 * question.first_s[0]), array(2 * question.first_s[1])),
        last_extra_s=(array(2 * question.last_s[0]), array(2 * question.last_s[1])),
        weight_gradient_s=array(2 * question.weight_gradient_s),
        transfer_s=array(2 * question.transfer_s),
        is_blocking=question.is_blocking,
    )
    assert one(step_s(doubled, layout)) == pytest.approx(2 * one(step_s(stages, layout)))


def test_many_layouts_at_once_are_each_by_itself() -> None:
    asked = [question for schedule in CLOSED for question in realistic(schedule)]
    single = {name: [question.layout.arrays()[name] for question in asked] for name in asked[0].layout.arrays()}
    many = Layouts(**{name: np.concatenate(arrays) for name, arrays in single.items()})  # type: ignore[arg-type]
    stages = Stages.of(
        many,
        array(3.0),
        array(6.0),
        first_extra_s=(array(0.03), array(0.06)),
        last_extra_s=(
            np.array([question.last_s[0] for question in asked]),
            np.array([question.last_s[1] for question in asked]),
        ),
        weight_gradient_s=array(3.0),
        transfer_s=np.array([question.transfer_s for question in asked]),
    )
    assert step_s(stages, many) == pytest.approx([question.step_s for question in asked])


# -- a whole step with its collectives ---------------------------------------------------------------------------------


def test_exchanges_of_gradients_in_buckets_run_beside_the_last_backward() -> None:
    stage = StageTimes(forward_s=3.0, backward_s=6.0, buckets_s=(1.0, 1.0, 1.0), update_s=0.5)
    run_s = simulate_step([stage] * 2, 0.0, num_microbatches=4, schedule=Schedule.ONE_F_ONE_B)
    # The first stage ends last; two buckets hide behind its last backward, the third does not.
    assert run_s == pytest.approx(5 * 9.0 + 1.0 + 0.5)


def test_weights_gathered_ahead_hide_behind_computing_but_for_the_first() -> None:
    stage = StageTimes(forward_s=3.0, backward_s=6.0, gather_s=2.0)
    run_s = simulate_step([stage], 0.0, num_microbatches=4, schedule=Schedule.ONE_F_ONE_B)
    assert run_s == pytest.approx(2.0 + 4 * 9.0)


@given(
    st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B]),
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 8),
    st.floats(0, 30),
)
def test_a_step_with_its_gradients_exchanged_agrees_with_the_simulation(
    schedule: Schedule, pipeline: int, microbatches: int, num_buckets: int, exchange_s: float
) -> None:
    question = Question(schedule=schedule, pipeline=pipeline, num_microbatches=microbatches, transfer_s=0.5)
    buckets_s = (exchange_s / num_buckets,) * num_buckets
    stage = StageTimes(forward_s=3.0, backward_s=6.0, buckets_s=buckets_s, update_s=0.25)
    simulated_s = simulate_step([stage] * pipeline, 0.5, num_microbatches=microbatches, schedule=schedule)
    # Of equal stages the first ends last, and its exchange with it: of n buckets the last has nothing to run beside.
    exposed_s = max(exchange_s / num_buckets, exchange_s - (1 - 1 / num_buckets) * stage.backward_s)
    assert question.step_s + exposed_s + 0.25 == pytest.approx(simulated_s)


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_F_ONE_B])
@pytest.mark.parametrize("is_split", [False, True])
def test_a_layout_with_all_its_exchanges_agrees_with_the_simulation(schedule: Schedule, is_split: bool) -> None:
    transformer = Transformer(
        num_layers=16, hidden_size=2048, num_heads=16, vocabulary_size=32768, sequence_length=2048
    )
    layout = Layouts.one(
        tensor=4, context=2, pipeline=4, data=2, num_microbatches=6, schedule=int(schedule), recompute=2,
        sequence_parallel=is_split,
    )  # fmt: skip
    tiers = (
        Tier(size=8, bandwidth_bytes_per_s=300e9, latency_s=3e-6),
        Tier(size=8, bandwidth_bytes_per_s=25e9, latency_s=1e-5, num_rails=8),
    )
    groups = groups_of(tiers, layout)
    layer = communication_times(layer_communication(transformer, layout, "dense"), groups)
    sent_s = communication_times(pipeline_communication(transformer, layout), groups)["pipeline"].forward_s
    reduced_s, gathered_s = replica_times(replica_communication(transformer, layout), groups)["dense"]
    # Computing of one stage's four layers, and all their exchanges, none of them hidden.
    forward_s = 4 * (1e-3 + np.sum([times.forward_s for times in layer.values()], axis=0))
    backward_s = 4 * (3e-3 + np.sum([times.backward_s + times.recomputed_s for times in layer.values()], axis=0))
    stages = Stages.of(layout, forward_s, backward_s, transfer_s=sent_s)
    exposed_s = np.maximum(reduced_s / 4, reduced_s - (1 - 1 / 4) * backward_s)
    closed_s = one(step_s(stages, layout) + exposed_s + gathered_s)
    stage = StageTimes(
        forward_s=one(forward_s),
        backward_s=one(backward_s),
        buckets_s=(one(reduced_s) / 4,) * 4,
        update_s=one(gathered_s),
    )
    simulated_s = simulate_step([stage] * 4, one(sent_s), num_microbatches=6, schedule=schedule)
    assert closed_s == pytest.approx(simulated_s)
    assert one(sent_s) > 0
    assert one(reduced_s) > 0
