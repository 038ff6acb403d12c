"""An encoder of images in front of a language model, counted a second time: matrices, what is kept, and FLOP.

Its blocks are those of any network (:mod:`second_physics.hybrid_layer`), with an image for a sample, split over tensor
ranks alone. Patches are whole on every rank; the projector's first matrix is split by columns, its second by rows.
"""

from collections.abc import Mapping
from typing import Any

from planner.transformer import Transformer
from tests.referee.second_physics.hybrid_layer import IMBALANCE, NUMBER_BYTES, Layer, layer_of

__all__ = ["ends_flop", "image_block", "images_kept", "images_layers", "images_parameters"]


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


def images_parameters(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return the encoder's parameters on one device."""
    encoder, tensor = network.encoder, block["tensor"]
    if encoder is None or encoder.image is None or encoder.projector is None:
        return 0.0
    hidden, image, projector = encoder.hidden_size, encoder.image, encoder.projector
    shift = 2 if encoder.norm == "layer_norm" and encoder.has_norm_biases else 1
    patch = image.patch_size**2 * image.num_channels * image.frames_per_patch
    whole = (patch + image.has_patch_bias + image.has_class_token) * hidden
    whole += hidden * encoder.num_positions * (encoder.positions == "learned")
    whole += (encoder.has_embedding_norm + encoder.has_final_norm) * shift * hidden
    square = 1 if projector.is_pooled else projector.merge**2
    vectors = {"none": 0, "rms_norm": 1, "layer_norm": 2}[projector.norm]
    whole += vectors * hidden * (1 if projector.is_norm_first else square)
    inner, width = projector.hidden_size, network.hidden_size
    first = inner or width
    split = first * (square * hidden + projector.has_biases)
    if inner is not None:
        split, whole = split + inner * width, whole + width * projector.has_biases
    layers = sum(one.shared for one in images_layers(network, block))
    return float(layers + whole + split / tensor)


def images_kept(network: Transformer, block: Mapping[str, Any]) -> float:
    """Return the bytes that the encoder keeps of a micro-batch on one device."""
    encoder = network.encoder
    if encoder is None or encoder.image is None or encoder.projector is None:
        return 0.0
    hidden, image, projector = encoder.hidden_size, encoder.image, encoder.projector
    patches = image.image_size // image.patch_size * (image.image_height // image.patch_size)
    tokens, out = patches + image.has_class_token, patches // projector.merge**2
    numbers = float(patches * image.patch_size**2 * image.num_channels * image.frames_per_patch)
    numbers += tokens * hidden * (encoder.has_embedding_norm + encoder.has_final_norm)
    joined = hidden * (1 if projector.is_pooled else projector.merge**2)
    is_view = projector.merge == 1 and projector.norm == "none"  # of all tokens, that of the class among them
    numbers += (tokens if is_view else out) * joined  # what the first matrix reads
    if projector.norm != "none":
        numbers += tokens * hidden if projector.is_norm_first else out * joined
    if projector.hidden_size is not None:  # before and behind the activation function
        numbers += 2 * out * projector.hidden_size
    layers = sum(one.kept for one in images_layers(network, block))
    return float(layers + NUMBER_BYTES * numbers * block["microbatch"] * network.num_images)


def ends_flop(network: Transformer) -> float:
    """Return the FLOP of one image forward in patches and projector."""
    encoder = network.encoder
    if encoder is None or encoder.image is None or encoder.projector is None:
        return 0.0
    image, projector, hidden = encoder.image, encoder.projector, encoder.hidden_size
    patches = image.image_size // image.patch_size * (image.image_height // image.patch_size)
    found = patches * image.patch_size**2 * image.num_channels * image.frames_per_patch * hidden
    joined = hidden * (1 if projector.is_pooled else projector.merge**2)
    inner, width = projector.hidden_size, network.hidden_size
    each = joined * width if inner is None else inner * (joined + width)
    return 2.0 * (found + patches // projector.merge**2 * each)
