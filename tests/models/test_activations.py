"""What layers keep for the backward pass: by kind, in fp32 and in mixed precision."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import chain

from planner import zoo
from planner.dnn import Dnn, Layer, Operator, Product
from planner.models.activations import data_parallel_memory, kept_bytes
from planner.models.memory import Precision
from research.memory_fit import read_kept

MIXED, WHOLE = Precision.of("fp16", "momentum"), Precision.of("fp32", "momentum")
KINDS = ("convolution", "matmul", "batch_norm", "norm", "softmax", "activation", "add", "pooling", "concatenate")


def layer(kind: str, name: str = "", *, size: int = 10, **more: object) -> Layer:
    work = 10 * size if kind in ("convolution", "matmul") else 0
    return Layer(name=name or kind, kind=kind, output_shape=(size,), num_multiply_adds=work, **more)  # type: ignore[arg-type]


def kept(dnn: Dnn, precision: Precision = MIXED) -> dict[str, float]:
    numbers = kept_bytes(dnn, precision).tolist()
    return {one.name: number / one.num_output_elements for one, number in zip(dnn.layers, numbers, strict=True)}


def test_convolutions_and_batch_norm_keep_their_inputs_once_in_two_bytes() -> None:
    found = kept(
        chain(layer("input"), layer("convolution"), layer("batch_norm"), layer("activation", is_in_place=True))
    )
    assert found == {"input": 2, "convolution": 2, "batch_norm": 2, "activation": 0}


def test_a_norm_keeps_its_input_in_fp32_and_a_product_a_short_copy_of_what_is_fp32() -> None:
    found = kept(chain(layer("input"), layer("matmul", "one"), layer("norm"), layer("matmul", "two"), layer("softmax")))
    assert found["one"] == 4  # the norm's own copy; nobody reads the short one
    assert found["norm"] == 2  # the product's copy
    assert found["softmax"] == 4


def test_a_softmax_is_kept_in_fp32_for_itself_and_short_for_the_product_behind_it() -> None:
    found = kept(chain(layer("input"), layer("softmax"), layer("matmul")))
    assert found["softmax"] == 4 + 2


def test_every_product_makes_its_own_copy_and_an_addition_none() -> None:
    layers = [
        (layer("input"), ()),
        (layer("norm"), ("input",)),
        (layer("matmul", "query"), ("norm",)),
        (layer("matmul", "key"), ("norm",)),
        (layer("add"), ("norm", "query")),
        (layer("activation"), ("add",)),
    ]
    found = kept(Dnn("branches", layers))
    assert found["norm"] == 2 * 2
    assert found["add"] == 4  # one of the two is fp32
    assert found["activation"] == 4


def test_what_is_read_through_an_operator_in_place_is_one_array() -> None:
    in_place = layer("activation", is_in_place=True)
    found = kept(chain(layer("input"), layer("norm"), in_place, layer("matmul")))
    assert found == {"input": 4, "norm": 4 + 2, "activation": 0, "matmul": 2}


def test_a_weight_that_scales_makes_fp32_and_a_bias_of_a_product_does_not() -> None:
    scale = Operator(kind="element_wise", read_elements=10, written_elements=10, weight_elements=10)
    product = Operator(
        kind="matmul",
        num_multiply_adds=100,
        read_elements=10,
        written_elements=10,
        weight_elements=100,
        product=Product(rows=1, inner=10, columns=10, count=1),
    )
    scaled = layer("operator", "scaled", operators=(scale,))
    biased = layer("matmul", "biased", operators=(product, scale))
    assert kept(chain(layer("input"), scaled, layer("activation")))["scaled"] == 4
    assert kept(chain(layer("input"), biased, layer("activation")))["biased"] == 2


def test_what_is_kept_beside_outputs_is_halved_unless_it_is_a_mask_or_an_index() -> None:
    copied = layer("activation", is_in_place=True, kept_beside_bytes=40)
    pooled = layer("pooling", kept_beside_bytes=80)
    dnn = chain(layer("input"), layer("convolution"), copied, pooled)
    assert kept(dnn)["activation"] == 2
    assert kept(dnn, WHOLE)["activation"] == 4
    assert kept(dnn)["pooling"] == 2 + 8
    assert kept(dnn, WHOLE)["pooling"] == 4 + 8


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.booleans(), st.integers(0, 3)), min_size=1, max_size=12))
def test_mixed_precision_is_between_half_of_fp32_and_what_casts_may_add(rows: list[tuple[str, bool, int]]) -> None:
    own = [layer("input", "0")]
    for at, (kind, is_in_place, beside) in enumerate(rows, 1):
        own.append(layer(kind, str(at), is_in_place=is_in_place, kept_beside_bytes=40 * beside))
    dnn = chain(*own)
    whole, mixed = kept_bytes(dnn, WHOLE), kept_bytes(dnn, MIXED)
    assert (mixed >= whole / 2).all()
    assert mixed.sum() <= 2 * whole.sum()
    assert [number for number, one in zip(whole, own, strict=True) if one.is_in_place] == [
        one.kept_beside_bytes for one in own if one.is_in_place
    ]
    use = data_parallel_memory(dnn, MIXED)
    assert use.total_bytes(3) > use.total_bytes(2)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "googlenet", "alexnet"])
def test_networks_of_convolutions_keep_half_of_fp32(name: str) -> None:
    dnn = zoo.build(name)
    assert 2 * kept_bytes(dnn, MIXED).sum() == pytest.approx(kept_bytes(dnn, WHOLE).sum(), rel=0.01)
    assert kept_bytes(dnn, WHOLE).sum() == 4 * dnn.num_stored_elements


@pytest.mark.parametrize(
    ("name", "imported", "rel"),
    [
        ("resnet34", "gluon_resnet34_v1b", 0.08),
        ("resnet50", "gluon_resnet50_v1b", 0.03),
        ("resnet101", "resnet101", 0.03),
        ("vgg16", "vgg16", 0.3),  # its pools are large
    ],
)
def test_the_zoo_keeps_what_a_module_keeps_but_for_indices_of_maxima(name: str, imported: str, rel: float) -> None:
    ours = data_parallel_memory(zoo.build(name), MIXED).activations_per_sample_bytes
    assert ours == pytest.approx(read_kept()[imported, "224"].kept_bytes, rel=rel)
