"""Networks of tokens that are no transformers of the table: Swin, MLP-Mixer, and a language model of LSTMs."""

from planner.dnn import Dnn
from planner.zoo.builder import Builder

__all__ = ["lstm_lm", "mixer_b16", "swin"]


def _feed_forward(net: Builder, name: str, num_inner: int) -> None:
    """Append two matrices with a GELU between them."""
    num_features = net.shape[0]
    net.linear(f"{name}.up", num_inner).activation(f"{name}.gelu", "gelu").linear(f"{name}.down", num_features)


# -- Swin ------------------------------------------------------------------------------------------------------------

# Section 3.3 of the paper: channels of the first stage and blocks of all four. A head has 32 channels.
_SWINS = {"t": (96, (2, 2, 6, 2)), "s": (96, (2, 2, 18, 2)), "b": (128, (2, 2, 18, 2))}
_HEAD_SIZE = 32
_WINDOW = 7


def swin(size: str) -> Dnn:
    """Return Swin ``t``, ``s`` or ``b``: 224 x 224 input, patches of 4 x 4, windows of 7 x 7.

    Every second block shifts its windows, but not in the last stage, where one window is the whole image.
    """
    num_channels, numbers = _SWINS[size]
    net = Builder((3, 224, 224)).conv("patches", num_channels, kernel=4, stride=4).layer_norm("patches.norm")
    for stage, number in enumerate(numbers, start=1):
        if stage > 1:
            net.merge_patches(f"merge{stage}.patches").layer_norm(f"merge{stage}.norm")
            net.linear(f"merge{stage}.reduction", net.shape[0] // 2, bias=False)
        channels, height, _ = net.shape
        for index in range(number):
            block, entry = f"stage{stage}.{index}", net.last
            net.begin_block().layer_norm(f"{block}.norm1").window_attention(
                f"{block}.attention",
                num_heads=channels // _HEAD_SIZE,
                window=_WINDOW,
                is_shifted=index % 2 == 1 and height > _WINDOW,
            )
            entry = net.add(f"{block}.add1", entry).last
            _feed_forward(net.layer_norm(f"{block}.norm2"), f"{block}.mlp", 4 * channels)
            net.add(f"{block}.add2", entry).end_block()
    net.layer_norm("norm").global_average_pool("avgpool").flatten("flatten").fully_connected("head", 1000)
    return net.build(f"swin-{size}", source="Z. Liu et al., ICCV 2021, arXiv 2103.14030, section 3.3")


# -- MLP-Mixer -------------------------------------------------------------------------------------------------------


def mixer_b16() -> Dnn:
    """Return Mixer-B/16: 196 patches of 16 x 16, mixed among each other and then by channel, twelve times."""
    net = Builder((3, 224, 224)).conv("patches", 768, kernel=16, stride=16).tokens("tokens")
    for index in range(12):
        block, entry = f"block{index}", net.last
        net.begin_block().layer_norm(f"{block}.norm1").transpose(f"{block}.transpose1")
        _feed_forward(net, f"{block}.tokens", 384)
        entry = net.transpose(f"{block}.transpose2").add(f"{block}.add1", entry).last
        _feed_forward(net.layer_norm(f"{block}.norm2"), f"{block}.channels", 3072)
        net.add(f"{block}.add2", entry).end_block()
    net.layer_norm("norm").global_average_pool("avgpool").flatten("flatten").fully_connected("head", 1000)
    return net.build("mixer-b16", source="I. Tolstikhin et al., NeurIPS 2021, arXiv 2105.01601, Table 1")


# -- LSTM language models --------------------------------------------------------------------------------------------

_VOCABULARY = 10_000
_STEPS = 35  # words of one sample
_PENN_TREEBANK_WORDS = 929_000  # "929k training words", section 4.1
_LSTM_FEATURES = {"medium": 650, "large": 1500}


def lstm_lm(size: str) -> Dnn:
    """Return the ``medium`` or the ``large`` regularised LSTM of the Penn Treebank: two layers, 35 words a sample.

    Notes
    -----
    Dropout on all but the recurrent connections. The embedding and the logits have matrices of their own: 19,775,200
    and 66,022,000 parameters, with one bias a gate; cuDNN's two biases would make them 0.03 and 0.02 % more.
    """
    num_features = _LSTM_FEATURES[size]
    net = Builder((1, _STEPS, 1)).embedding("embedding", _VOCABULARY, num_features).dropout("embedding.dropout")
    for name in ("lstm1", "lstm2"):
        net.begin_block().lstm(name, num_features).dropout(f"{name}.dropout").end_block()
    net.linear("logits", _VOCABULARY)
    return net.build(
        "lstm-lm" if size == "large" else f"lstm-lm-{size}",
        source=f"W. Zaremba, I. Sutskever and O. Vinyals, arXiv 1409.2329, section 4.1, the {size} LSTM",
        dataset_samples=_PENN_TREEBANK_WORDS // _STEPS,
    )
