"""Small PyTorch modules, and what is looked at in the networks that are read from them."""

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed; run make test-heavy")
nn: Any = torch.nn
functional: Any = torch.nn.functional
QUIET = pytest.mark.filterwarnings(  # of what libraries say of themselves
    "ignore:.*use_reentrant.*:UserWarning",
    "ignore:.*`torch.nn.utils.weight_norm`.*:FutureWarning",
    "ignore::DeprecationWarning:transformers",
    "ignore::DeprecationWarning:torch",
)


def counted_flop(module: Any, *args: Any, **kwargs: Any) -> int:
    """FLOP of a forward pass with real numbers, by a counter of its own."""
    counter_mode: Any = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    torch.backends.mkldnn.set_flags(False)  # the fused recurrent kernel of CPUs has no formula
    try:
        with counter_mode(display=False) as counter:
            module(*args, **kwargs)
    finally:
        torch.backends.mkldnn.set_flags(True)
    return int(counter.get_total_flops())


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(3, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, image: Any) -> Any:
        branch = self.second(functional.relu(self.norm(self.first(image))))
        joined = functional.relu(branch + self.shortcut(image))
        return self.head(torch.cat([joined.mean((2, 3)) / 2, joined.amax((2, 3)) / 2]).view(2, -1, 8).sum(0))


def on_meta(make: Any) -> Any:
    with torch.device("meta"):
        return make()
