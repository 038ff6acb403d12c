"""What layers keep beside their outputs: with these it is what autograd keeps."""

from typing import Any

import pytest

from planner.importers.torch_module import from_torch
from planner.models.activations import kept_bytes
from planner.models.memory import Precision

torch = pytest.importorskip("torch")


def test_copies_of_what_is_overwritten_and_indices_of_maxima_are_kept_beside() -> None:
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.MaxPool2d(2), nn.Conv2d(8, 8, 1)
    )
    found = from_torch(module, torch.zeros(2, 3, 8, 8))
    beside = {layer.kind: layer.kept_beside_bytes for layer in found.dnn.layers if layer.kept_beside_bytes}
    assert beside == {"activation": 4 * 8 * 64, "pooling": 8 * 8 * 16}
    result = 4 * 8 * 16  # of the whole module: it is stored, but autograd does not keep it
    assert kept_bytes(found.dnn, Precision.of("fp32", "sgd")).sum() == found.facts["saved_bytes"] + result


def test_a_relu_in_place_keeps_nothing_beside() -> None:
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 1))
    assert not any(layer.kept_beside_bytes for layer in from_torch(module, torch.zeros(2, 3, 8, 8)).dnn.layers)


def test_what_does_not_grow_with_the_batch_is_not_of_a_sample() -> None:
    base: Any = torch.nn.Conv2d

    class Standardised(base):  # type: ignore[misc]
        def forward(self, x):  # type: ignore[no-untyped-def]
            weight = (self.weight - self.weight.mean()) / self.weight.std()
            return self._conv_forward(x, weight * weight, self.bias)

    module = torch.nn.Sequential(Standardised(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 1))
    assert not any(layer.kept_beside_bytes for layer in from_torch(module, torch.zeros(2, 3, 8, 8)).dnn.layers)
