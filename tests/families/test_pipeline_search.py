"""The best pipeline against every pipeline of its domain, predicted one by one; limits, pins, reasons, measured networks."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pipelines import MACHINE, every_shape, every_value, is_allowed, layer, question, small_questions
from stage_bound import bound_s
from tight_memory import TIGHT

import planner
from planner.errors import InfeasibleError, ModelError, NoAnswerError
from planner.exporters.export import Job, refusal_of
from planner.families.pipeline import domain as pipeline_domain
from planner.families.pipeline import family as pipeline
from planner.families.pipeline import rows as pipeline_rows
from planner.families.pipeline import search as pipeline_sources
from planner.families.pipeline.cost import PipelineConfiguration, PipelineCost, Shape
from planner.families.pipeline.domain import CHUNKS, Domain
from planner.families.pipeline.memory import may_fit
from planner.families.pipeline.rows import PlainSource, StageRows, passing_s, quick_shapes
from planner.families.pipeline.search import InterleavedSource, plan
from planner.models import schedule
from planner.models.orders import order_of
from planner.models.stages import Stage
from planner.plan import Plan
from planner.problem import Limits, Problem
from planner.search import Search
from planner.solution import Status
from planner.solvers.pipeline_bounds import Schedule
from planner.solvers.pipeline_tables import LeastDevices, Tables


def line_of(found: Plan) -> PipelineConfiguration:
    assert isinstance(found.configuration, PipelineConfiguration)
    return found.configuration


def best(asked: dict[str, Any], **limits: Any) -> Plan:
    return plan(planner.load(asked), Search(**limits))


@settings(max_examples=80)
@given(small_questions())
def test_choices_that_stand_for_several_numbers_of_devices_give_a_true_bound(asked: dict[str, Any]) -> None:
    problem = planner.load(asked)
    values = every_value(problem)
    with patch.object(pipeline_domain, "MOST_REPLICAS", 0):
        if not values:
            with pytest.raises((InfeasibleError, NoAnswerError)):
                plan(problem, Search())
            return
        try:
            found = plan(problem, Search())
        except NoAnswerError:  # a limit on devices that only a number in between meets
            assert problem.fixed or problem.limits != Limits()
            return
    assert found.bound <= min(values) * (1 + 1e-9)
    assert min(values) <= found.objective * (1 + 1e-9)


def hold_plan_against_every_pipeline(problem: Problem) -> None:
    values = every_value(problem)
    if not values:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            plan(problem, Search())
        return
    found = plan(problem, Search())
    assert found.status is Status.OPTIMAL
    assert found.objective == found.bound == pytest.approx(min(values))
    assert found.prediction.memory_bytes["total"] <= found.prediction.memory_bytes["limit"]


@settings(max_examples=150)
@given(small_questions())
def test_the_plan_is_as_good_as_the_best_of_every_pipeline_predicted(asked: dict[str, Any]) -> None:
    hold_plan_against_every_pipeline(planner.load(asked))


@settings(max_examples=150)
@given(small_questions(), st.sampled_from([64, 0]))
def test_the_best_plan_that_can_be_launched_is_that_of_every_pipeline_that_a_target_launches(
    asked: dict[str, Any], most: int
) -> None:
    """``most``: devices of a group beyond which choices are bounded together."""
    problem = planner.load(asked)
    cost, values, given = PipelineCost(problem), [], None
    for shape in filter(partial(is_allowed, problem, cost), every_shape(problem, cost)):
        given = plan(problem, Search()) if given is None else given
        configuration = cost.configuration(shape)
        prediction = pipeline.predict(problem, configuration)
        made = replace(given, configuration=configuration, prediction=prediction)
        is_launched = refusal_of(Job(problem=problem, plan=made)) is None
        assert is_launched == shape.is_equal
        values += [prediction.value_of(problem.goal)] * is_launched
    search = Search(skipped=pipeline.NOT_LAUNCHED)
    with patch.object(pipeline_domain, "MOST_REPLICAS", most):
        try:
            found = plan(problem, search)
        except InfeasibleError:
            assert not values
            return
        except NoAnswerError:  # as of choices that stand for several numbers of devices
            assert most == 0
            assert not values or problem.fixed or problem.limits != Limits()
            return
    assert found.bound <= min(values) * (1 + 1e-9)
    if most == 0:
        assert found.objective >= min(values) * (1 - 1e-9)
        return
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(min(values))
    for cutoff, is_found in ((found.objective * 0.999, False), (found.objective * 1.001, True)):
        with nullcontext() if is_found else suppress(NoAnswerError):
            again = plan(problem, replace(search, cutoff=cutoff))
            assert again.objective >= found.objective * (1 - 1e-9)
            assert not is_found or again.objective == pytest.approx(found.objective)


@settings(max_examples=TIGHT)
@given(small_questions(), st.integers(0, 10**6), st.sampled_from([-1, 0, 1]))
def test_nothing_that_fits_tight_memory_is_missed(asked: dict[str, Any], which: int, more: int) -> None:
    free = planner.load(asked)
    cost = PipelineCost(free)
    shapes = every_shape(free, cost)
    sizes = sorted({max(row["total"] for row in cost.memory_bytes(shape)) for shape in shapes})
    if not sizes:  # pins leave nothing
        return
    limits = replace(free.limits, memory_per_device_bytes=sizes[which % len(sizes)] + more)
    hold_plan_against_every_pipeline(replace(free, limits=limits))


@settings(max_examples=80)
@given(small_questions(), st.booleans(), st.integers(0, 9))
def test_the_bound_of_a_candidate_is_that_of_its_true_times(asked: dict[str, Any], is_gpipe: bool, index: int) -> None:
    domain = Domain(planner.load({**asked, "fix": {}, "constraints": {}}))
    number = domain.numbers_of_microbatches[index % len(domain.numbers_of_microbatches)]
    source = PlainSource(domain, Schedule(num_microbatches=number, is_gpipe=is_gpipe), Search())
    for _ in range(6):
        shape = source.next(float("inf"), float("inf"))
        if shape is None:
            continue
        times = domain.cost.times(shape)
        flush_s = [one + other for one, other in zip(times.sync_s, times.update_s, strict=True)]
        true_s = bound_s(
            times.forward_s, times.backward_s, times.transfer_s, times.transfer_s, flush_s, source.schedule
        )
        least_s = domain.cost.input(shape).bound_s if domain.least_stall_s == 0 else 0.0
        assert source.bound_of_last >= max(true_s + domain.least_stall_s, least_s) * (1 - 1e-9)
        assert source.bound_of_last <= domain.cost.iteration_time_s(shape) * (1 + 1e-9)
        ((_, passing),) = passing_s(domain, [number], float("inf"), Search())
        assert passing <= true_s


@settings(max_examples=60)
@given(small_questions(), st.booleans(), st.booleans())
def test_sizes_of_micro_batches_side_by_side_are_each_as_by_itself(
    asked: dict[str, Any], is_gpipe: bool, is_open: bool
) -> None:
    domain = Domain(planner.load({**asked, "fix": {}}))
    rows, most = StageRows(domain, domain.numbers_of_microbatches), 0 if is_open else max(domain.numbers_of_stages)
    together = Tables(rows, rows.stack(is_gpipe=is_gpipe), most, Search())
    for index, number in enumerate(rows.numbers):
        one, begin = StageRows(domain, [number]), sum(rows.num_choices[:index])
        alone = Tables(one, one.stack(is_gpipe=is_gpipe), most, Search())
        assert np.array_equal(together.of(index).entries, alone.entries)
        choices = np.arange(len(one.choices))
        assert rows.choices[begin : begin + len(choices)] == one.choices
        assert np.array_equal(rows.floor_s[begin + choices], one.floor_s)
        for cut in range(1, domain.num_layers):
            for left in choices.tolist():
                none = choices * 0
                sides = [
                    costs.boundary_s(none + cut, none + left + first, none, choices + first, none)
                    for costs, first in ((rows, begin), (one, 0))
                ]
                assert np.array_equal(sides[0], sides[1])


@settings(max_examples=60)
@given(small_questions(), st.integers(0, 9))
def test_under_gpipe_the_bound_does_not_depend_on_the_number_of_stages(asked: dict[str, Any], index: int) -> None:
    """Which is why its tables are filled once, with that number open."""
    domain = Domain(planner.load({**asked, "fix": {}}))
    rows = StageRows(domain, [domain.numbers_of_microbatches[index % len(domain.numbers_of_microbatches)]])
    stack, most = rows.stack(is_gpipe=True), max(domain.numbers_of_stages)
    each, either = (Tables(rows, stack, number, Search()) for number in (most, 0))
    assert np.array_equal(each.is_alive[1:, 0].any(axis=0), either.is_alive[0, 0])
    for used in np.flatnonzero(either.is_alive[0, 0]).tolist():
        alive = np.flatnonzero(each.is_alive[1:, 0, used]) + 1
        assert each.entries[:, alive, 0, used].min(axis=1) == pytest.approx(either.entries[:, 0, 0, used])


@settings(max_examples=150, deadline=None)
@given(small_questions(), st.booleans())
def test_no_source_is_ruled_out_below_whose_cutoff_it_has_a_pipeline(asked: dict[str, Any], is_coarse: bool) -> None:
    """By whole layers and whole samples in time, or these and memory: each pipeline of a group is its own cutoff."""
    problem = planner.load(asked)
    with patch.object(pipeline_domain, "MOST_REPLICAS", 0 if is_coarse else 1024):
        domain = Domain(problem)
        if len(domain.num_devices) > 1:
            return
        shapes = [one for one in every_shape(problem, domain.cost) if is_allowed(problem, domain.cost, one)]
        for shape in shapes:
            if shape.schedule == "interleaved":
                continue
            number, cutoff_s = shape.num_microbatches, domain.cost.iteration_time_s(shape) * (1 + 1e-9)
            assert dict(passing_s(domain, [number], cutoff_s, Search()))[number] <= cutoff_s
            # Of small numbers all are asked for memory together, on devices that the pipeline just fits on.
            held = max(row["total"] / row["limit"] for row in domain.cost.memory_bytes(shape))
            numbers = sorted({*domain.numbers_of_microbatches, number})
            with patch.object(pipeline_rows, "_NEAR", 8):
                passing = dict(passing_s(domain.with_memory(held * (1 + 1e-9)), numbers, cutoff_s, Search()))
            assert passing[number] <= cutoff_s
            rows = StageRows(domain, [number])
            stack = rows.stack(is_gpipe=shape.schedule == "gpipe")
            fits = Mock(wraps=may_fit)
            asking = partial(fits, domain, (number, number), Search())
            tables = Tables(rows, stack, 0, Search(), cutoff_s - domain.least_stall_s, None, [asking])
            assert tables.is_alive[0, 0, 0]
            ((*_, least, ahead),) = [call.args for call in fits.call_args_list]
            used = np.cumsum([0, *(one.replicas for one in shape.stages)])
            assert all(least[one.first, one.last] <= one.replicas for one in shape.stages)
            assert all(ahead[one.first] <= before for one, before in zip(shape.stages, used, strict=False))


@settings(max_examples=60)
@given(small_questions(), st.integers(0, 99))
def test_numbers_that_are_ruled_out_together_are_so_each_alone(asked: dict[str, Any], which: int) -> None:
    """On devices, and within times, of which some numbers of micro-batches just have enough."""
    asked["cluster"]["machines"] = asked["cluster"]["machines"][:1]
    asked["dnn"].pop("batch_per_device", None)
    asked["dnn"] |= {"global_batch": 3 + which % 10}
    name = ("1f1b", "gpipe")[which % 2]
    asked |= {"fix": {"schedule": name}, "constraints": {}, "objective": "epoch_time"}
    with patch.object(pipeline_domain, "MOST_REPLICAS", 0), patch.object(pipeline_rows, "_NEAR", 8):
        domain = Domain(planner.load(asked))
        numbers = range(1, 3 + which % 10)  # of the batch itself each would hold the least that there is
        shapes = [one for one in every_shape(domain.problem, domain.cost) if one.schedule == name]
        for shape in shapes[which % 7 :: max(1, len(shapes) // 20)]:
            held = max(row["total"] / row["limit"] for row in domain.cost.memory_bytes(shape))
            tight = domain.with_memory(held * (1 + 1e-9))
            cutoff_s = domain.cost.iteration_time_s(shape) * (1 + 1e-9)
            together = dict(passing_s(tight, numbers, cutoff_s, Search()))
            for number in numbers:
                alone = dict(passing_s(tight, [number], cutoff_s, Search()))
                assert together[number] <= alone[number]


@pytest.mark.parametrize("slack", [1.2, 1.5, 3])
def test_numbers_together_are_asked_for_memory_on_devices_that_each_of_them_has(slack: float) -> None:
    with patch.object(pipeline_domain, "MOST_REPLICAS", 0), patch.object(pipeline_rows, "_NEAR", 8):
        domain = Domain(planner.load(question()))
        cutoff_s, with_more = slack * domain.least_s_per_sample * domain.batch, 0
        with patch.object(pipeline_rows, "may_fit", return_value=True) as fits:
            assert [*passing_s(domain, range(1, 9), cutoff_s, Search())]
        for _, (fewest, most), _, stage, ahead in (call.args for call in fits.call_args_list):
            for number in range(fewest, most + 1):
                rows = StageRows(domain, [number])
                own = LeastDevices.of(rows, rows.stack(is_gpipe=False), cutoff_s - domain.least_stall_s)
                assert (stage <= own.stage[0]).all()
                assert (ahead <= own.ahead[0]).all()
                with_more += bool((ahead < own.ahead[0]).any() and (stage < own.stage[0]).any())
    assert with_more


@settings(max_examples=40)
@given(small_questions())
def test_the_plan_is_as_good_whether_tables_are_filled_together_or_each_alone(asked: dict[str, Any]) -> None:
    problem, found = planner.load(asked), []
    for most in (0.0, pipeline_rows._MOST_TOGETHER):
        with patch.object(pipeline_rows, "_MOST_TOGETHER", most):
            try:
                found.append(plan(problem, Search()).objective)
            except InfeasibleError:
                found.append(float("inf"))
    assert found[0] == pytest.approx(found[1])


@settings(max_examples=40)
@given(small_questions())
def test_of_large_groups_the_plan_is_the_same_whether_tables_are_filled_together_or_each_alone(
    asked: dict[str, Any],
) -> None:
    problem, found = planner.load(asked), list[tuple[Any, ...]]()
    for most in (0, pipeline_rows._MOST_COARSE_SHARED):
        patched = patch.object(pipeline_rows, "_MOST_COARSE_SHARED", most)
        with patched, patch.object(pipeline_domain, "MOST_REPLICAS", 0):
            try:
                answer = plan(problem, Search())
                found.append((answer.objective, answer.bound, answer.configuration, answer.explanation))
            except (InfeasibleError, NoAnswerError) as error:
                found.append((str(error),))
    assert found[0] == found[1]


@pytest.mark.parametrize(("most", "has_more"), [(-1, False), (pipeline_rows._MOST_TRIED, True)])
def test_tables_by_number_of_stages_are_filled_where_the_cutoff_left_few_stages(most: float, has_more: bool) -> None:
    domain = Domain(planner.load(question(6, dnn={"global_batch": 64})))
    source = PlainSource(domain, Schedule(num_microbatches=8), Search())
    with patch.object(pipeline_rows, "_MOST_ENTRIES", 0), patch.object(pipeline_rows, "_MOST_TRIED", most):
        source.next(float("inf"), float("inf"))
    assert source.needs(is_open=False) is has_more


@pytest.mark.parametrize("most_replicas", [0, 1024])
def test_sources_that_need_tables_get_them_together(most_replicas: int) -> None:
    problem, numbers = planner.load(question(6, dnn={"global_batch": 64})), []
    for most in (0.0, pipeline_rows._MOST_TOGETHER):
        together = patch.object(pipeline_rows, "_MOST_TOGETHER", most)
        coarse = patch.object(pipeline_domain, "MOST_REPLICAS", most_replicas)
        with together, coarse, patch.object(pipeline_rows, "Tables", wraps=Tables) as filled:
            plan(problem, Search())
        numbers.append(filled.call_count)
        assert (max(len(call.args[1]) for call in filled.call_args_list) > 1) == (most > 0)
    assert numbers[1] < numbers[0]


@settings(max_examples=60)
@given(small_questions(least_layers=4, least_machines=2), st.integers(0, 999))
def test_interleaved_shapes_are_listed_where_memory_allows_them(asked: dict[str, Any], drawn: int) -> None:
    domain, shapes = Domain(planner.load({**asked, "fix": {}})), {}
    for group, most in enumerate(domain.num_devices):
        for p, chunks, number in product(domain.numbers_of_stages, CHUNKS, domain.numbers_of_microbatches):
            if p >= 2 and p * chunks <= domain.num_layers and not number % p:
                for replicas in range(1, min(most // p, domain.batch // number) + 1):
                    stages = domain.balanced(group, p * chunks, replicas)
                    shapes[group, p, chunks, number, replicas] = domain.shape(stages, number, "interleaved", chunks)
    assume(shapes)
    least = list(shapes.values())[drawn % len(shapes)]
    held = max(row["total"] / row["limit"] for row in domain.cost.memory_bytes(least))
    domain = domain.with_memory(held * (1 + 1e-9))
    rows = [row for _, row in InterleavedSource(domain, Search())._rows(float("inf"))]
    listed = {(row.group, row.p, row.chunks, row.number, row.replicas) for row in rows}
    assert listed == {key for key, shape in shapes.items() if domain.fits(shape)}


@settings(max_examples=60)
@given(small_questions())
def test_a_boundary_takes_as_long_in_the_search_as_in_the_cost(asked: dict[str, Any]) -> None:
    domain = Domain(planner.load({**asked, "fix": {}}))
    number = domain.numbers_of_microbatches[-1]
    rows, groups = StageRows(domain, [number]), range(len(domain.num_devices))
    index = {(one.type_index, one.num_devices): position for position, one in enumerate(rows.choices)}
    for cut, group, other in product(range(1, domain.num_layers), groups, groups):
        if group == other and domain.num_devices[group] < 2:
            continue
        before = Stage(first=0, last=cut - 1, group=group, replicas=1)
        after = Stage(first=cut, last=domain.num_layers - 1, group=other, replicas=1)
        place = 1 % domain.places[group] if group == other else 0
        at = (cut, index[group, 1], 0, index[other, 1], place)
        found = rows.boundary_s(*(np.array([number]) for number in at))
        times = domain.cost.times(domain.shape([before, after], number, "1f1b"))
        assert found.tolist() == [[pytest.approx(times.transfer_s[0])]] * 2
    assert rows.boundary_s(*[np.zeros(0, dtype=int)] * 5).shape == (2, 0)


def test_the_same_question_gives_the_same_plan() -> None:
    first, second = (best(question()) for _ in range(2))
    assert first == second


def test_a_large_layer_without_work_gets_a_stage_of_its_own_and_the_plan_says_what_that_saves() -> None:
    layers = [layer(0, 20), layer(1, 20), layer(2, 1, "400 MB", "1 kB")]
    layers[1]["output"] = "40 kB"
    machines = [{**MACHINE, "count": 4, "devices": 1}]
    asked = question(dnn={"layers": layers, "global_batch": 12}, cluster={"machines": machines})
    found = best(asked, num_alternatives=3)
    assert [one.replicas for one in line_of(found).stages] == [3, 1]
    assert [one.first for one in line_of(found).stages] == ["layer0", "layer2"]
    assert any("data parallelism without overlap" in line and "longer" in line for line in found.explanation)
    assert any(one.name == "data parallel, one stage" for one in found.alternatives)


def test_where_gradients_cost_nothing_pipelining_does_not_pay() -> None:
    fast = {
        **MACHINE,
        "network": "4000 Gbit/s",
        "latency": "0 us",
        "inside": {"bandwidth": "4000 GB/s", "latency": "0 us"},
    }
    layers = [layer(index, 5, "4 kB", "400 MB") for index in range(3)]
    found = best(question(dnn={"layers": layers}, cluster={"machines": [fast]}))
    assert line_of(found).num_stages == 1
    assert any("pipelining does not pay" in line for line in found.explanation)


def test_the_faster_devices_of_a_mixed_cluster_get_the_longer_stage() -> None:
    machines = [
        {
            **MACHINE,
            "name": name,
            "count": 1,
            "devices": 1,
            "device": {"name": name, "fp32": f"{rate} TFLOP/s", "memory": "16 GB"},
        }
        for name, rate in (("slow", 1), ("fast", 3))
    ]
    dnn = {"layers": [layer(index, 5, "200 MB", "4 kB") for index in range(4)], "profile_device": "slow"}
    found = best(question(dnn=dnn, cluster={"machines": machines}, fix={"num_stages": 2}))
    assert {one.machines: int(one.last[-1]) - int(one.first[-1]) + 1 for one in line_of(found).stages} == {
        "slow": 1,
        "fast": 3,
    }


def test_a_time_limit_gives_the_best_so_far_with_a_bound_below_it() -> None:
    problem = planner.load(question(12))
    truth = plan(problem, Search())

    class Soon(Search):
        """A search that is over after so many questions."""

        asked = 0

        @property
        def is_over(self) -> bool:
            Soon.asked += 1
            return Soon.asked > 60

    found = plan(problem, Soon())
    assert found.bound <= truth.objective <= found.objective
    with pytest.raises(NoAnswerError, match="time limit"):
        plan(problem, Search(time_limit_s=0.0))


class Counted(Search):
    """A search that is over after so many questions, given as ``seed``; nothing here draws lots."""

    @property
    def is_over(self) -> bool:
        self.seed -= 1
        return self.seed < 0


@pytest.mark.parametrize("batch", [65_536, 10_000_000])
@pytest.mark.parametrize("asked_for", [40, 400])
def test_a_limit_holds_for_batches_of_millions(batch: int, asked_for: int) -> None:
    """No schedule is walked through task by task, and what was searched until then is a good answer."""
    problem = planner.load(question(4, dnn={"global_batch": batch}))
    orders = patch.object(schedule, "order_of", wraps=order_of)
    rows = patch.object(pipeline_rows, "StageRows", wraps=pipeline_rows.StageRows)
    with orders as walked, rows as made:
        found = plan(problem, Counted(seed=asked_for))
    assert all(call.args[2] <= 64 for call in walked.call_args_list)
    assert made.call_count <= asked_for
    assert found.bound <= found.objective
    assert found.gap < 0.05


def test_where_few_micro_batches_do_not_fit_the_fewest_that_do_are_tried_first() -> None:
    problem = planner.load(question(4, dnn={"global_batch": 2**20}))
    domain = Domain(problem)
    fitting = [shape for shape in islice(quick_shapes(domain), 40) if domain.allows(shape)]
    assert any(shape.num_microbatches < domain.batch // 100 for shape in fitting)


def test_interleaved_pipelines_that_just_stay_below_the_cutoff_are_given() -> None:
    layers = [layer(index, 2, "4 B", "4 B") for index in range(16)]  # what is sent takes next to nothing
    domain, work_s = Domain(planner.load(question(dnn={"layers": layers, "global_batch": 16}))), []
    for p, chunks, number in product((2, 4), (2, 3, 4), (4, 16)):
        shape = domain.shape(domain.balanced(0, p * chunks, 1), number, "interleaved", chunks)
        source, shapes = InterleavedSource(domain, Search()), list[Shape | None]()
        seconds = domain.cost.iteration_time_s(shape)
        while source.bound < seconds * (1 + 1e-9) and len(shapes) < 1_000:
            shapes.append(source.next(seconds * (1 + 1e-9), seconds))
        assert shape in shapes
        work_s.append(0.006 * len(layers) * domain.batch / p / seconds)
    assert max(work_s) > 0.98  # of a device, in all that time


def test_interleaved_pipelines_are_not_listed_once_the_search_is_over() -> None:
    domain = Domain(planner.load(question(8, dnn={"global_batch": 64})))
    source = InterleavedSource(domain, Counted(seed=5))
    with patch.object(pipeline_sources, "_Row", wraps=pipeline_sources._Row) as listed:
        assert source.next(float("inf"), float("inf")) is None
        assert 0 < listed.call_count <= 5
    assert source.bound <= min(plan(domain.problem, Search()).bound, 1.0)
    source.search = Search()
    assert source.next(float("inf"), float("inf")) is None
    assert source.next(float("inf"), float("inf")) is not None


@settings(max_examples=20)
@given(small_questions(), st.integers(1, 3))
def test_schedules_beyond_what_is_simulated_still_count_in_the_bound(asked: dict[str, Any], refused: int) -> None:
    problem = planner.load(asked)
    values = every_value(problem)
    simulated = PipelineCost.iteration_time_s

    def iteration_time_s(cost: PipelineCost, shape: Shape) -> float:
        if shape.num_devices_in_line == refused:
            raise ModelError("too many")
        return simulated(cost, shape)

    with patch.object(PipelineCost, "iteration_time_s", iteration_time_s):
        try:
            found = plan(problem, Search())
        except (InfeasibleError, NoAnswerError):
            return
    assert found.bound <= min(values) * (1 + 1e-9)
    assert line_of(found).num_stages != refused


def test_the_search_ends_with_the_first_answer_that_is_good_enough() -> None:
    problem = planner.load(question(6))
    any_answer, truth = plan(problem, Search(good_enough=float("inf"))), plan(problem, Search())
    assert any_answer.provenance.num_solved == 1
    assert any_answer.bound <= truth.objective <= any_answer.objective


def test_a_network_that_is_too_large_for_every_split_says_how_much_memory_would_do() -> None:
    asked = question(3, dnn={"layers": [layer(0), layer(1, 2, "400 MB"), layer(2)], "global_batch": 2})
    with pytest.raises(InfeasibleError, match="for any split, some stage needs at least") as caught:
        best({**asked, "constraints": {"memory_per_device": "500 MB"}})
    enough = str(caught.value).split(" to ")[1].split(" ")
    assert best({**asked, "constraints": {"memory_per_device": f"{enough[0]} {enough[1].rstrip('.')}"}}).objective > 0
    with pytest.raises(InfeasibleError):
        best({**asked, "constraints": {"memory_per_device": f"{float(enough[0]) * 0.997} {enough[1].rstrip('.')}"}})


def test_a_pinned_number_of_stages_that_does_not_fit_is_told_the_next_that_does() -> None:
    asked = question(4, dnn={"layers": [layer(index, 2, "400 MB", "4 kB") for index in range(4)], "global_batch": 4})
    asked["constraints"] = {"memory_per_device": "2500 MB"}
    with pytest.raises(InfeasibleError, match=r"fix\.num_stages from 1 to 2"):
        best({**asked, "fix": {"num_stages": 1}})
    assert line_of(best({**asked, "fix": {"num_stages": 2}})).num_stages == 2
    with pytest.raises(InfeasibleError, match="1 to 4 stages"):
        best({**asked, "fix": {"num_stages": 5}})


def varying(asked: dict[str, Any], most: int) -> dict[str, Any]:
    """The question with a batch that may vary up to a maximum."""
    dnn = {key: value for key, value in asked["dnn"].items() if key != "global_batch"}
    return {**asked, "dnn": {**dnn, "max_global_batch": most}}


@settings(max_examples=60)
@given(small_questions(), st.integers(1, 4))
def test_a_batch_that_may_vary_is_as_good_as_the_best_of_all_fixed_ones(asked: dict[str, Any], most: int) -> None:
    network = {key: value for key, value in asked["dnn"].items() if key != "batch_per_device"}
    asked = {**asked, "dnn": {**network, "dataset_samples": 1000}, "objective": "epoch_time"}
    values = []
    for batch in range(1, most + 1):
        values += every_value(planner.load({**asked, "dnn": {**asked["dnn"], "global_batch": batch}}))
    if not values:
        with pytest.raises(InfeasibleError, match="No plan fits"):
            best(varying(asked, most))
        return
    found = best(varying(asked, most))
    assert found.status is Status.OPTIMAL
    assert found.objective == pytest.approx(min(values))


def test_a_smaller_batch_that_divides_among_the_devices_beats_the_largest() -> None:
    asked = question(2, dnn={"dataset_samples": 1200}, objective="epoch_time")
    asked = {**asked, "fix": {"num_microbatches": 1, "num_stages": 1, "num_devices": 4}}
    found = best(varying(asked, 9))
    assert line_of(found).global_batch_size == 8
    assert found.status is Status.OPTIMAL


def test_of_many_batches_the_largest_are_searched_and_the_others_bounded() -> None:
    asked = question(2, dnn={"dataset_samples": 1200}, objective="epoch_time")
    asked = {**asked, "fix": {"num_microbatches": 1, "num_stages": 1, "num_devices": 4}}
    found = best(varying(asked, 101))
    assert line_of(found).global_batch_size == 100
    smaller = [best({**asked, "dnn": {**asked["dnn"], "global_batch": batch}}).objective for batch in range(4, 102)]
    assert found.bound <= min(smaller) * (1 + 1e-9)
    assert found.objective == pytest.approx(min(smaller))


def test_where_the_largest_batches_do_not_fit_a_small_one_is_found() -> None:
    asked = question(2, dnn={"dataset_samples": 1200}, objective="epoch_time")
    asked = {**asked, "fix": {"num_microbatches": 1}}
    needed = best({**asked, "dnn": {**asked["dnn"], "global_batch": 12}}).prediction.memory_bytes["total"]
    found = best({**varying(asked, 4000), "constraints": {"memory_per_device": f"{needed} B"}})
    assert 12 <= line_of(found).global_batch_size < 4000
    assert found.bound <= found.objective
    limited = {**varying(asked, 30), "constraints": {"memory_per_device": f"{needed} B"}}
    assert best(limited, good_enough=float("inf")).objective >= best(limited).objective


def test_the_first_quick_pipeline_fits_and_uses_a_whole_group() -> None:
    domain = Domain(planner.load(question(4, dnn={"global_batch": 2**20})))
    first = next(quick_shapes(domain))
    assert domain.allows(first)
    assert first.stages[0].replicas == domain.num_devices[0]


def test_a_pinned_number_of_machines_of_two_large_groups_is_met() -> None:
    machines = [{**MACHINE, "name": name, "count": 100, "devices": each} for name, each in (("a", 1), ("b", 2))]
    asked = question(5, cluster={"machines": machines}, dnn={"global_batch": 800})
    found = best({**asked, "fix": {"num_machines": 150}}, good_enough=float("inf"))
    assert found.prediction.details["num_machines"] == 150


@pytest.mark.parametrize("fix", [{"num_devices": 17}, {"num_machines": 5}, {"num_machines": 1, "num_devices": 9}])
def test_pinned_devices_and_machines_that_there_are_not_are_refused(fix: dict[str, int]) -> None:
    machines = [{**MACHINE, "count": 4, "devices": 4}]
    with pytest.raises(InfeasibleError, match="no number of machines and devices meets all limits and pins"):
        best({**question(cluster={"machines": machines}), "fix": fix})


@pytest.mark.parametrize("fix", [{"num_devices": 3}, {"num_machines": 2}, {"num_machines": 2, "num_devices": 7}])
def test_pinned_devices_and_machines_are_what_the_plan_has(fix: dict[str, int]) -> None:
    machines = [{**MACHINE, "count": 4, "devices": 4}]
    found = best({**question(cluster={"machines": machines}), "fix": fix})
    assert {key: found.prediction.details[key] for key in fix} == fix


def test_no_other_number_of_chunks_beats_the_best_interleaved_pipeline() -> None:
    layers = [layer(index, 1 + index * 7 % 5) for index in range(20)]
    asked = question(dnn={"layers": layers, "global_batch": 64}, fix={"schedule": "interleaved", "num_stages": 4})
    problem = planner.load({**asked, "cluster": {"machines": [{**MACHINE, "count": 4, "devices": 1}]}})
    found = plan(problem, Search())
    cost, line = PipelineCost(problem), line_of(found)
    domain = Domain(problem)
    assert found.status is Status.OPTIMAL
    for chunks in range(2, 6):
        stages = domain.balanced(0, 4 * chunks, 1)
        other = domain.shape(stages, line.num_microbatches, "interleaved", chunks)
        assert found.objective <= pipeline.predict(problem, cost.configuration(other)).value_of(problem.goal)


def test_a_large_group_is_searched_in_units_with_a_true_bound() -> None:
    machines = [{**MACHINE, "count": 200, "devices": 1}]
    asked = question(5, cluster={"machines": machines}, dnn={"global_batch": 400})
    found = best({**asked, "fix": {"num_microbatches": 2}})
    assert found.bound <= found.objective
    assert found.gap < 0.5
    fewer = best({**asked, "fix": {"num_microbatches": 2, "num_devices": 60}})
    assert found.bound <= fewer.objective


@pytest.mark.measured
def test_vgg16_on_four_machines_becomes_fifteen_replicas_and_one_device_for_its_fully_connected_layers(
    data_folder: Path,
) -> None:
    """PipeDream (D. Narayanan et al., SOSP 2019), table 1: 15-1 on 16 V100 of cluster A."""
    asked = {
        "dnn": {"profile": str(data_folder / "traces/pipedream/vgg16.graph.txt"), "profile_batch": 64, "global_batch": 1024, "dataset_samples": 1281167},
        "cluster": {"machines": [{**MACHINE, "count": 4, "devices": 4, "inside": "pcie-3-x16"}]},
        "families": ["pipeline"],
        "fix": {"schedule": "1f1b", "num_microbatches": 8},
    }  # fmt: skip
    found = best(asked)
    assert found.status is Status.OPTIMAL
    assert [one.replicas for one in line_of(found).stages] == [15, 1]
    assert any("data parallelism without overlap" in line and "longer" in line for line in found.explanation)


@pytest.mark.parametrize("is_out", [True, False])
def test_a_boundary_is_bounded_by_the_fastest_that_what_is_left_on_its_other_side_could_have(is_out: bool) -> None:
    fast = {"count": 2, "device": "v100-sxm2-16g", "devices": 4, "inside": "nvlink-2", "network": "25 Gbit/s"}
    slow = {"count": 3, "device": "rtx-2080-ti", "devices": 2, "inside": "pcie-3-x16", "network": "10 Gbit/s"}
    rows = StageRows(domain := Domain(planner.load(question(2, cluster={"machines": [fast, slow]}))), [1])
    for choice, (group, replicas, _) in enumerate(rows._runs):
        for before in product(*(range(number + 1) for number in domain.num_devices)):
            if before[group] + replicas > domain.num_devices[group] or (not is_out and sum(before) == 0):
                continue
            used = [number + replicas * (index == group) for index, number in enumerate(before)]
            place = rows.domain.spots.place((group, replicas, replicas), before[group])
            others = []
            for index, number in enumerate(used if is_out else before):
                for one in range(1, (domain.num_devices[index] - number if is_out else number) + 1):
                    start = number if is_out else number - one
                    others.append(rows.domain.spots.place((index, one, one), start))
            pairs = [(place, other) if is_out else (other, place) for other in others]
            seconds = [domain.cost.costs.transfer_s(1, *pair, microbatch_size=domain.batch) for pair in pairs]
            at = np.array([choice]), np.array([before[group] % domain.places[group]])
            known = np.array(used if is_out else before)[:, None]
            found = rows.out_s(np.array([0]), *at, known) if is_out else rows.in_s(np.array([1]), *at, known)
            if seconds:
                assert found[:, 0] == pytest.approx([min(seconds)] * 2)
