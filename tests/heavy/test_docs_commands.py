"""Pages of the documentation with commands that take long, or that need PyTorch: every block of them is followed."""

import warnings
from pathlib import Path

import docs_pages
import pytest
from docs_commands import answered, blocks
from pytest import CaptureFixture, MonkeyPatch

PAGES = sorted(
    {page for page, _ in docs_pages.LONG} | {page for page in docs_pages.followed() if docs_pages.has_needs(page)}
)


@pytest.mark.parametrize("page", PAGES)
def test_what_stands_on_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    docs_pages.follow_page(page, tmp_path, capsys, has_long=True)


def test_the_trace_that_docs_profiles_md_takes_is_the_one_that_it_reads(
    tmp_path: Path, monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch", reason="run make test-heavy")
    monkeypatch.chdir(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def train(images: object, targets: object) -> None:
        torch.nn.functional.mse_loss(net(images), targets).backward()
        optimizer.step()

    page = blocks("docs/profiles.md")
    (code,) = [block for block in page if block.kind == "python"]
    batches = [(torch.rand(32, 8), torch.rand(32, 4)) for _ in range(8)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no GPU here
        exec(code.text, {"batches": batches, "train": train})
    (command,) = [one for block in page for one in block.commands if "import trace.json.gz" in one.text]
    assert all(answered(call) == 0 for call in command.parts)
    assert "fully_connected       2" in capsys.readouterr().out
