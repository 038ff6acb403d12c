"""An encoder of images in front of a language model, counted a second time: matrices, what is kept, and FLOP.

Its blocks are those of any network (:mod:`second_physics.hybrid_layer`), with an image for a sample, split over tensor
ranks alone. Patches are whole on every rank; the projector's first matrix is split by columns, its second by rows.
"""

from collections.abc import Mapping
from typing import Any

from planner.transformer import Transformer
from tests.referee.second_physics.hybrid_layer import IMBALANCE, NUMBER_BYTES, Layer, layer_of

__all__ = ["ends_flop", "image_block", "images_kept", "images_layers", "images_parameters", "still_of"]


def image_block(network: Transformer, block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layout as the encoder sees it: all images of a micro-batch on every context rank."""
    own = {"context": 1, "expert": 1, "expert_tensor": block["tensor"], "sequence_parallel": False}
    images = block["microbatch"] * network.num_images
    return {**block, **own, IMBALANCE: 1.0, "recompute_layers": 0, "offload_layers": 0, "microbatch": images}


def images_layers(network: Transformer, block: Mapping[str, Any]) -> list[Layer]:
    """Return the encoder's blocks on one device, in order; none without an encoder."""
    if network.encoder is None:
        return []
    own = image_block(network, block)
    found = {kind: layer_of(network.encoder, own, kind) for kind in dict.fromkeys(network.encoder.layer_kinds)}
    return [found[kind] for kind in network.encoder.layer_kinds]


def still_of(network: Transformer) -> tuple[bool, bool]:
    """Whether patches and blocks are frozen, and whether the last norm and the projector are."""
    parts = network.trained.frozen_parts
    has_adapters = network.fine_tuning is not None
    return has_adapters or "encoder" in parts, has_adapters or "projector" in parts


def images_parameters(network: Transformer, block: Mapping[str, Any], *, is_trained: bool = False) -> float:
    """Return the encoder's parameters on one device, or those of them that are trained."""
    encoder, tensor = network.encoder, block["tensor"]
    if encoder is None or encoder.image is None or encoder.projector is None:
        return 0.0
    hidden, image, projector = encoder.hidden_size, encoder.image, encoder.projector
    shift = 2 if encoder.norm == "layer_norm" and encoder.has_norm_biases else 1
    patch = image.patch_size**2 * image.num_channels * image.frames_per_patch
    ahead = (patch + image.has_patch_bias + image.has_class_token) * hidden
    ahead += hidden * encoder.num_positions * (encoder.positions == "learned")
    ahead += encoder.has_embedding_norm * shift * hidden
    whole = encoder.has_final_norm * shift * hidden
    square = 1 if projector.is_pooled else projector.merge**2
    vectors = {"none": 0, "rms_norm": 1, "layer_norm": 2}[projector.norm]
    whole += vectors * hidden * (1 if projector.is_norm_first else square)
    inner, width = projector.hidden_size, network.hidden_size
    first = inner or width
    split = first * (square * hidden + projector.has_biases)
    if inner is not None:
        split, whole = split + inner * width, whole + width * projector.has_biases
    layers = images_layers(network, block)
    if not is_trained:
        return float(sum(one.shared for one in layers) + ahead + whole + split / tensor)
    is_still, is_projector_still = still_of(network)
    own = sum(one.own_shared for one in layers) + ahead * (not is_still)
    return float(own + (whole + split / tensor) * (not is_projector_still))


def images_kept(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return the bytes that the encoder keeps of a micro-batch on one device."""
    encoder = network.encoder
    if encoder is None or encoder.image is None or encoder.projector is None:
        return 0.0
    hidden, image, projector = encoder.hidden_size, encoder.image, encoder.projector
    patches = image.image_size // image.patch_size * (image.image_height // image.patch_size)
    tokens, out = patches + image.has_class_token, patches // projector.merge**2
    is_still, is_projector_still = still_of(network)
    numbers = float(patches * image.patch_size**2 * image.num_channels * image.frames_per_patch)
    numbers = (numbers + tokens * hidden * encoder.has_embedding_norm) * (not is_still)
    if is_still and is_projector_still:  # nothing before words is trained
        return 0.0
    numbers += tokens * hidden * encoder.has_final_norm
    joined = hidden * (1 if projector.is_pooled else projector.merge**2)
    is_view = projector.merge == 1 and projector.norm == "none"  # of all tokens, that of the class among them
    # What the first matrix reads, which a frozen one reads no more backward.
    numbers += (tokens if is_view else out) * joined * (not is_projector_still)
    if projector.norm != "none":
        numbers += tokens * hidden if projector.is_norm_first else out * joined
    if projector.hidden_size is not None:  # before and behind the activation function
        numbers += (2 - is_projector_still) * out * projector.hidden_size
    layers = sum(one.kept for one in images_layers(network, block))
    return float(layers + NUMBER_BYTES * numbers * block["microbatch"] * network.num_images)


def ends_flop(network: Transformer) -> tuple[float, float]:
    """Return the FLOP of one image forward in patches, and in the projector."""
    encoder = network.encoder
    if encoder is None or encoder.image is None or encoder.projector is None:
        return 0.0, 0.0
    image, projector, hidden = encoder.image, encoder.projector, encoder.hidden_size
    patches = image.image_size // image.patch_size * (image.image_height // image.patch_size)
    found = patches * image.patch_size**2 * image.num_channels * image.frames_per_patch * hidden
    joined = hidden * (1 if projector.is_pooled else projector.merge**2)
    inner, width = projector.hidden_size, network.hidden_size
    each = joined * width if inner is None else inner * (joined + width)
    return 2.0 * found, 2.0 * (patches // projector.merge**2 * each)
