"""The grid of a sweep against Python's own product and zip; paths; what is refused at once."""

import copy
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeps import BASE, TODAY, asked, batches

from planner.errors import SpecError
from planner.sweep.answers import Answer, Outcome, Task
from planner.sweep.engine import refuse_hopeless
from planner.sweep.question import MOST_QUESTIONS, field_path, path_text, with_value

COLUMNS = st.lists(st.integers(1, 1000), min_size=1, max_size=4)
FIELDS = ("dnn.batch_per_device", "dnn.dataset_samples", "cluster.machines.0.count", "fix.num_devices")


@given(st.lists(COLUMNS, min_size=1, max_size=4))
def test_fields_by_themselves_multiply_the_last_fastest(columns: list[list[int]]) -> None:
    sweep = asked({"vary": dict(zip(FIELDS, columns, strict=False))})
    expected = list(product(*columns))
    assert [sweep.grid.values(position) for position in range(len(sweep.grid))] == expected


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5), COLUMNS)
def test_fields_in_one_part_of_zip_go_together(pairs: list[tuple[int, int]], column: list[int]) -> None:
    first, second = (list(values) for values in zip(*pairs, strict=True))
    sweep = asked({"vary": {FIELDS[0]: column}, "zip": [{FIELDS[1]: first, FIELDS[2]: second}]})
    expected = [(value, *pair) for value in column for pair in pairs]
    assert [sweep.grid.values(position) for position in range(len(sweep.grid))] == expected


@given(COLUMNS, COLUMNS)
def test_a_question_holds_its_values_and_the_base_stays_as_it_is(counts: list[int], sizes: list[int]) -> None:
    before = copy.deepcopy(BASE)
    grid = asked({"vary": {"cluster.machines.0.count": counts, "constraints.deadline": ["1 h"], FIELDS[0]: sizes}}).grid
    for position in range(len(grid)):
        question = grid.question(position)
        count, deadline, size = grid.values(position)
        assert question["cluster"]["machines"][0] == {**BASE["cluster"]["machines"][0], "count": count}
        assert question["constraints"] == {"deadline": deadline}
        assert question["dnn"] == {**BASE["dnn"], "batch_per_device": size}
    assert before == BASE


def test_whole_blocks_come_before_fields_in_them_wherever_they_stand() -> None:
    sweep = asked({"vary": {"dnn.batch_per_device": [1, 2], "dnn": [{"zoo": "vgg16"}, {"zoo": "alexnet"}]}})
    found = [sweep.grid.question(position)["dnn"] for position in range(4)]
    assert found == [{"zoo": zoo, "batch_per_device": size} for size in (1, 2) for zoo in ("vgg16", "alexnet")]


@given(st.lists(st.one_of(st.integers(0, 99), st.text("abz_.*4", min_size=1, max_size=5)), min_size=1, max_size=5))
def test_a_path_is_read_as_it_is_written(parts: list[Any]) -> None:
    path = ("dnn", *parts)
    assert field_path(path_text(path)) == path


@pytest.mark.parametrize("text", ["", ".", "a..b", "a.", "0.a", '"', 'a"b"', "[0]", "a[x]", "a" + ".b" * 100])
def test_what_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no path"):
        field_path(text)


def test_a_value_beyond_a_list_or_below_a_number_has_no_place() -> None:
    with pytest.raises(ValueError, match="place 3 is asked for, and there is a list of 1"):
        with_value({"a": [1]}, ("a", 3), 1)
    with pytest.raises(ValueError, match="no block of keys"):
        with_value({"a": 1}, ("a", "b"), 1)
    assert with_value({}, ("a", "b"), 1) == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"vary": {"cluster.machine.0.count": [1]}}, "unknown key 'machine' in cluster. Did you mean 'machines'"),
        ({"vary": {"dnn.batch": [1]}}, "unknown key 'batch' in dnn"),
        ({"vary": {"sweep.vary": [1]}}, "unknown key 'sweep' in a question"),
        ({"vary": {"dnn.zoo": []}}, "sweep.vary.dnn.zoo: this list is empty"),
        ({"vary": {"dnn": [{"zoo": "vgg16"}]}, "zip": [{"dnn": [{"zoo": "vgg16"}]}]}, "varies twice"),
        ({"zip": [{"dnn.batch_per_device": [1, 2], "dnn.epochs": [1]}]}, "as many values each"),
        ({"zip": [{}]}, "empty"),
        ({}, "nothing varies"),
        (None, "nothing varies"),
        ({"vari": {}}, "unknown key 'vari'"),
        ({"vary": [1]}, "must be a mapping"),
    ],
)
def test_a_block_that_is_wrong_is_refused_at_once(block: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        asked(block)


def test_a_question_without_the_block_is_told_what_to_add() -> None:
    from planner.sweep.question import load_sweep

    with pytest.raises(SpecError, match="there is no block sweep"):
        load_sweep(BASE, time_limit_s=1.0)


def test_too_many_questions_are_refused_before_any_is_made() -> None:
    many = {"from": 1, "to": 100_000, "step": 1}
    with pytest.raises(SpecError, match=f"100000 x 100000 are 10000000000 questions, and {MOST_QUESTIONS} is the most"):
        asked({"vary": {"dnn.batch_per_device": many, "dnn.dataset_samples": many}})
    assert len(asked({"vary": {"dnn.batch_per_device": many, "dnn.epochs": list(range(1, 101))}}).grid) == 10_000_000


def test_fields_of_a_purchase_are_known_where_there_is_one() -> None:
    base = {"dnn": {"zoo": "resnet50", "global_batch": 256, "epochs": 1}, "procure": {"deadline": "24 h"}}
    assert len(asked({"vary": {"procure.deadline": ["1 h", "2 h"], 'procure.quotas."p4d.*"': [1]}}, base).grid) == 2
    with pytest.raises(SpecError, match="unknown key 'cluster'"):
        asked({"vary": {"cluster.preset": ["osf-testbed"]}}, base)


def test_a_sweep_of_nothing_but_wrong_questions_is_refused_and_one_right_one_is_enough() -> None:
    hopeless = asked({"vary": {"cluster.machines.0.device": ["v1000", "v1001"]}})
    with pytest.raises(SpecError, match=r"all 2 questions are wrong. The first one:\n.*v1000"):
        refuse_hopeless(hopeless, TODAY)
    refuse_hopeless(asked({"vary": {"cluster.machines.0.device": ["v1000", "v100"]}}), TODAY)
    large = asked({"vary": {"dnn.batch_per_device": {"from": 1, "to": 5000, "step": 1}, "dnn.dtype": ["fp99"]}})
    with pytest.raises(SpecError, match="200 of 5000 questions were tried, and all are wrong"):
        refuse_hopeless(large, TODAY)


def test_equal_questions_of_two_sweeps_have_one_key_and_other_limits_have_others() -> None:
    def key(sweep: Any, position: int) -> str:
        task = sweep.task(position, TODAY)
        assert isinstance(task, Task)
        return task.key

    short, long = asked(batches(3)), asked(batches(5))
    assert short.identity != long.identity
    assert [key(short, at) for at in range(3)] == [key(long, at) for at in range(3)]
    assert len({key(long, at) for at in range(5)}) == 5
    assert key(asked(batches(3), time_limit_s=61.0), 0) != key(short, 0)


def test_a_question_that_cannot_be_put_together_is_an_answer() -> None:
    found = asked({"vary": {"cluster.machines.1.count": [1, 2]}}).task(1, TODAY)
    assert isinstance(found, Answer)
    assert found.outcome is Outcome.WRONG
    assert "place 1 is asked for, and there is a list of 1" in (found.error or "")
