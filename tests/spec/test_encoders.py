"""Vision-language models asked for in a spec: the block ``dnn.encoder``, its faults, and plans that count it."""

from dataclasses import replace
from typing import Any

import pytest

import planner
from planner.errors import InfeasibleError, SpecError
from planner.problem import Problem
from planner.transformer import Transformer
from planner.zoo.transformers import row

TINY: dict[str, Any] = {
    **{"layers": 8, "hidden": 512, "heads": 8, "vocabulary": 1000, "sequence_length": 512, "norm": "rms_norm"},
    "encoder": {
        **{"layers": 8, "hidden": 512, "heads": 6, "head_size": 64, "feed_forward": 1536},
        **{"image": {"size": 224, "patch": 14, "class_token": False}, "projector": {"merge": 2, "hidden": 512}},
        "images": 2,
    },
}
CLUSTER = {"machines": [{"count": 1, "device": "h100-sxm", "devices": 4}]}


def asked(dnn: dict[str, Any], **more: Any) -> Problem:
    return planner.load({"dnn": {"global_batch": 16, **dnn}, "cluster": CLUSTER, "families": ["hybrid"], **more})


def network_of(dnn: dict[str, Any]) -> Transformer:
    network = asked(dnn).dnn.transformer
    assert network is not None
    return network


def test_a_block_says_what_the_encoder_of_the_zoo_has_otherwise() -> None:
    found = network_of({"zoo": "llava-1.5-7b", "encoder": {"images": 3, "image": {"size": 224}}})
    assert (found.num_images, found.num_image_tokens) == (3, 3 * 256)
    known = row("llava-1.5-7b").transformer
    assert found.encoder is not None
    assert known.encoder is not None
    assert replace(found.encoder, image=known.encoder.image, sequence_length=577, num_positions=577) == known.encoder


def test_a_block_puts_an_encoder_before_any_language_model() -> None:
    encoder = {**TINY["encoder"], "projector": {"merge": 2}}
    found = network_of({"zoo": "llama3-8b", "encoder": encoder})
    plain = row("llama3-8b").transformer
    assert found.encoder is not None
    assert found.num_parameters - plain.num_parameters == found.encoder.num_parameters
    assert replace(found, encoder=None, num_images=0) == plain


@pytest.mark.parametrize(
    ("dnn", "words"),
    [
        ({"zoo": "llava-1.5-7b", "encoder": {"images": 4}}, "4 images of 576 tokens are 2,304 tokens"),
        ({"zoo": "llava-1.5-7b", "encoder": {"image": {"size": 330}}}, "no whole number of patches of 14"),
        ({"zoo": "llava-1.5-7b", "encoder": {"images": 0}}, "images"),
        ({"zoo": "llama3-8b", "encoder": {"images": 2}}, "image.size of the encoder is missing"),
        ({"zoo": "vgg16", "encoder": {"images": 2}}, "not known as a transformer"),
        ({"zoo": "bert-large", "encoder": TINY["encoder"]}, "stands in front of a language model"),
        ({"zoo": "llava-1.5-7b", "sequence_length": 512}, "more than the sequence of 512"),
    ],
)
def test_what_cannot_be_is_refused_where_it_stands(dnn: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        asked(dnn)


def test_an_answer_is_asked_again_as_it_was() -> None:
    problem = asked({"transformer": TINY})
    again = planner.load(problem.resolved)
    assert again.dnn.transformer == problem.dnn.transformer


def test_a_tensor_degree_divides_the_heads_of_the_encoder() -> None:
    with pytest.raises(InfeasibleError, match=r"tensor_parallel_size is 4, and it can be 1, 2"):
        planner.plan(asked({"transformer": TINY}, fix={"tensor_parallel_size": 4}))


def test_the_stage_with_the_encoder_gets_fewer_layers() -> None:
    found = planner.plan(asked({"transformer": TINY}, fix={"pipeline_parallel_size": 2, "tensor_parallel_size": 1}))
    block = found.configuration.to_document()
    first, last = (one["layers"] for one in block["stages"])
    assert first < last
    assert any("2 images a sample, 128 of its 512 tokens" in line for line in found.explanation)
