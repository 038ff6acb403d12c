"""Encoders of images in front of a language model: their parameters, their work, and where it stands."""

from dataclasses import replace

import pytest
from transformer_rates_drawn import figures_of

from planner.encoders import Projector
from planner.models.layouts import Layouts, Recompute
from planner.models.memory import PRECISIONS, memory_bytes, stage_memory_bytes
from planner.models.operators import PROJECTED, flop_per_sample, head_operators, parts
from planner.models.parameters import embedding_parameters, encoder_parameters
from planner.models.transformer_interval import interval_times
from planner.trained import FineTuning, Trained
from planner.transformer import Transformer
from planner.transformer_parts import Image
from planner.zoo.transformers import block_of, dnn_of, row, transformer_of, with_encoder

LLAVA, QWEN, GEMMA = (row(name).transformer for name in ("llava-1.5-7b", "qwen2.5-vl-7b", "gemma3-27b-vision"))
ALL = pytest.mark.parametrize("network", [LLAVA, QWEN, GEMMA], ids=["llava", "qwen", "gemma"])


def without(network: Transformer) -> Transformer:
    parts = tuple(one for one in network.trained.frozen_parts if one not in ("encoder", "projector"))
    trained = replace(network.trained, frozen_parts=parts)
    return replace(network, encoder=None, num_images=0, trained=trained)


def encoder_of(network: Transformer) -> Transformer:
    assert network.encoder is not None
    return network.encoder


@ALL
def test_operators_have_the_parameters_of_the_sizes(network: Transformer) -> None:
    counted = sum(part.count * one.weight_elements for part in parts(network) for one in part.operators)
    assert counted == network.num_parameters == without(network).num_parameters + encoder_of(network).num_parameters


@ALL
def test_the_block_of_a_spec_describes_the_whole_network(network: Transformer) -> None:
    assert transformer_of(block_of(network)) == network


@ALL
def test_a_graph_has_the_work_and_the_parameters(network: Transformer) -> None:
    dnn = dnn_of(replace(network, num_images=3, sequence_length=4096), "it")
    assert sum(layer.num_trainable for layer in dnn.layers) == network.num_parameters
    assert 2 * dnn.num_multiply_adds == flop_per_sample(dnn.transformer or network).forward_flop


def test_image_tokens_are_as_published() -> None:
    # LLaVA 1.5: 24 x 24; Gemma 3: 256; Qwen2.5-VL: a token for 28 x 28 pixels.
    assert (LLAVA.num_image_tokens, GEMMA.num_image_tokens, QWEN.num_image_tokens) == (576, 256, 36 * 36)
    wide = with_encoder(QWEN, {"images": 2, "image": {"size": 1120, "height": 560}})
    assert wide.num_image_tokens == 2 * 40 * 20
    assert wide.num_parameters == QWEN.num_parameters


def test_every_image_is_a_pass_through_the_encoder() -> None:
    alone = flop_per_sample(without(QWEN))
    for images in (1, 2, 3):
        found = flop_per_sample(replace(QWEN, num_images=images))
        assert found.total_flop - alone.total_flop == images * flop_per_sample(encoder_of(QWEN)).total_flop


def test_windows_of_112_pixels_leave_64_patches_to_attend_to_in_all_but_four_layers() -> None:
    encoder, tokens = encoder_of(QWEN), 72 * 72
    assert encoder.attended_pairs("window") == tokens * 64
    assert encoder.attended_pairs("attention") == tokens * tokens
    assert [kind for kind in encoder.layer_kinds if "window" not in kind] == ["dense"] * 4
    assert encoder.layer_kinds[7] == encoder.layer_kinds[31] == "dense"


def test_a_projector_merges_squares_before_its_products() -> None:
    named = {one.name: one for one in head_operators(encoder_of(QWEN))}
    assert named["projector.norm"].output_shape == (1280, 72 * 72, 1)
    assert named["projector.merge"].output_shape == (4 * 1280, 36 * 36, 1)
    assert named[PROJECTED[1]].output_shape == (3584, 36 * 36, 1)
    pooled = {one.name: one for one in head_operators(encoder_of(GEMMA))}
    assert pooled["projector.merge"].output_shape == (1152, 256, 1)
    assert PROJECTED[1] not in pooled


def test_a_tensor_group_splits_blocks_and_projector_and_not_patches() -> None:
    whole = encoder_parameters(QWEN, Layouts.one())[0]
    assert whole == encoder_of(QWEN).num_parameters
    four = encoder_parameters(QWEN, Layouts.one(tensor=4))[0]
    image = encoder_of(QWEN).image
    assert image is not None
    assert whole / 4 + image.patch_elements * 1280 * 3 / 4 <= four < whole / 3.5


def test_the_first_stage_alone_holds_the_encoder() -> None:
    layout = Layouts.one(pipeline=4, num_microbatches=8)
    with_it, alone = (
        stage_memory_bytes(network, layout, precision=PRECISIONS["megatron"]) for network in (QWEN, without(QWEN))
    )
    held = encoder_of(QWEN).num_parameters
    assert with_it["weights"][0] - alone["weights"][0] == pytest.approx(2 * held)
    assert with_it["optimizer"][0] - alone["optimizer"][0] == pytest.approx(12 * held)
    for term in ("weights", "gradients", "optimizer", "activations"):
        assert with_it[term][1:] == pytest.approx(alone[term][1:])
    assert embedding_parameters(QWEN, layout) - embedding_parameters(without(QWEN), layout) == pytest.approx(held)


def test_an_encoder_that_is_computed_again_keeps_the_inputs_of_its_layers() -> None:
    def kept(recompute: Recompute, images: int) -> float:
        network = replace(QWEN, num_images=images)
        layouts = Layouts.one(recompute=int(recompute))
        return float(memory_bytes(network, layouts, precision=PRECISIONS["megatron"])["activations"][0])

    each = kept(Recompute.FULL, 2) - kept(Recompute.FULL, 1)
    inputs = 32 * 72 * 72 * 1280 * 2
    assert inputs < each < 1.25 * inputs  # and what the projector reads
    assert kept(Recompute.NONE, 2) - kept(Recompute.NONE, 1) > 8 * each


def test_context_ranks_hold_all_images() -> None:
    def kept(context: int) -> float:
        layouts = Layouts.one(context=context)
        with_it, alone = (
            memory_bytes(network, layouts, precision=PRECISIONS["megatron"])["activations"][0]
            for network in (QWEN, without(QWEN))
        )
        return float(with_it - alone)

    assert kept(2) == pytest.approx(kept(1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": {"size": 1000}}, "no whole number of patches of 14"),
        ({"image": {"size": 1022}}, "cannot be merged 2 by 2"),
        ({"images": 4}, "more than the sequence of 4,096"),
        ({"heads": 15}, "no multiple of the 15 heads"),
        ({"window": 100}, "a window of 100 pixels has no whole number of patches"),
        ({"images": 5000}, "images is 5000"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_encoder(QWEN, change)


def test_an_encoder_belongs_to_a_language_model_of_its_width() -> None:
    with pytest.raises(ValueError, match="width 4096, and the language model has 3584"):
        replace(QWEN, encoder=LLAVA.encoder)
    with pytest.raises(ValueError, match="stands in front of a language model"):
        replace(QWEN, head="none")
    with pytest.raises(ValueError, match=r"image\.size of the encoder is missing"):
        with_encoder(row("qwen2.5-7b").transformer, {"layers": 2, "hidden": 64, "heads": 4, "image": {"patch": 14}})
    with pytest.raises(ValueError, match="a projector is the head of an encoder"):
        replace(encoder_of(QWEN), head="none")
    with pytest.raises(ValueError, match="merge of the projector is 0"):
        Projector(output_size=8, merge=0)


def test_an_image_that_is_no_square_has_patches_of_both_sides() -> None:
    assert Image(image_size=64, image_height=32, patch_size=16).num_patches == 8
    with pytest.raises(ValueError, match="an image of 40 pixels"):
        Image(image_size=64, image_height=40, patch_size=16)


# -- seconds -----------------------------------------------------------------------------------------------------------


def times_of(network: Transformer, **decisions: int | bool) -> dict[str, float]:
    found = interval_times(figures_of(network), Layouts.one(**decisions))
    return {name: float(one.sum()) for name, one in found.items()}


def encoder_s(network: Transformer, way: str = "", **decisions: int | bool) -> float:
    with_it, alone = (times_of(one, **decisions) for one in (network, without(network)))
    others = [name for name in alone if not name.startswith("embedding")]
    assert [with_it[name] for name in others] == pytest.approx([alone[name] for name in others])
    return with_it[f"embedding{way}"] - alone[f"embedding{way}"]


def test_an_encoder_takes_what_its_work_takes_at_the_rate_of_other_layers() -> None:
    twice = flop_per_sample(encoder_of(QWEN)).total_flop / flop_per_sample(without(QWEN), has_logits=False).total_flop
    layers = times_of(without(QWEN))["compute"]
    assert 0.8 * twice < encoder_s(QWEN) / layers < 2.0 * twice  # its products are smaller, its attention is more


def test_two_images_take_as_long_as_two_samples_of_one() -> None:
    assert encoder_s(replace(QWEN, num_images=2)) == pytest.approx(encoder_s(QWEN, microbatch=2), rel=1e-2)


def test_tensor_ranks_share_an_encoder_and_context_ranks_do_not() -> None:
    alone = encoder_s(QWEN)
    assert alone / 2 < encoder_s(QWEN, tensor=2) < alone
    assert encoder_s(QWEN, context=2) == pytest.approx(alone, rel=1e-3)


def test_an_encoder_is_computed_again_as_other_layers_are() -> None:
    again = encoder_s(QWEN, recompute=int(Recompute.FULL)) - encoder_s(QWEN)
    assert again == pytest.approx(encoder_s(QWEN, "_forward"), rel=0.1)
    some = encoder_s(QWEN, recompute=int(Recompute.FULL), recompute_layers=7)
    assert some == pytest.approx(encoder_s(QWEN, recompute=int(Recompute.FULL)))


def test_beside_adapters_an_encoder_runs_forward_alone() -> None:
    tuning = FineTuning(method="lora", rank=16, alpha=32, targets=("qkv", "output"))
    tuned = replace(QWEN, trained=Trained(adapters=tuning))
    assert encoder_s(tuned) == pytest.approx(encoder_s(tuned, "_forward"), rel=1e-3)
    assert encoder_s(tuned) < encoder_s(QWEN) / 2
    work = flop_per_sample(tuned).backward_flop - flop_per_sample(without(tuned)).backward_flop
    assert work == 0


def frozen(*parts: str) -> Transformer:
    return replace(QWEN, trained=Trained(frozen_parts=parts))


def test_a_frozen_encoder_runs_forward_alone_and_keeps_what_its_projector_reads() -> None:
    still = frozen("encoder")
    assert encoder_s(still) < 1.2 * encoder_s(still, "_forward") < encoder_s(QWEN) / 2
    layout = Layouts.one()
    held, alone, trained = (
        memory_bytes(network, layout, precision=PRECISIONS["megatron"]) for network in (still, without(QWEN), QWEN)
    )
    encoder = encoder_of(QWEN)
    own = encoder.num_parameters - encoder.head_parameters
    assert trained["optimizer"][0] - held["optimizer"][0] == pytest.approx(12 * own)
    assert held["weights"][0] == pytest.approx(trained["weights"][0])
    kept = held["activations"][0] - alone["activations"][0]
    assert kept < 0.03 * (trained["activations"][0] - alone["activations"][0])
    assert still.num_trained_parameters == QWEN.num_parameters - own


def test_a_projector_that_is_trained_alone_needs_gradients_through_the_whole_language_model() -> None:
    first = frozen("encoder", "embedding", "layers", "head")  # LLaVA's first stage
    assert first.num_trained_parameters == encoder_of(QWEN).head_parameters
    assert {*first.layer_kinds} == {"frozen+dense"}
    ahead = flop_per_sample(without(QWEN)).forward_flop  # of attention both factors have a gradient
    assert ahead < flop_per_sample(first).backward_flop < 1.1 * ahead
    still = replace(first, trained=Trained(frozen_parts=("encoder", "projector", "embedding", "layers")))
    assert {*still.layer_kinds} == {"front+dense"}


def test_a_frozen_projector_passes_errors_on_to_an_encoder_that_is_trained() -> None:
    assert encoder_s(frozen("projector")) > 0.9 * encoder_s(QWEN)
    both = frozen("encoder", "projector")
    assert encoder_s(both) == pytest.approx(encoder_s(both, "_forward"), rel=1e-3)
    with pytest.raises(ValueError, match="no encoder that could be frozen"):
        replace(without(QWEN), trained=Trained(frozen_parts=("encoder",)))
