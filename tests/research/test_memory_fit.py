"""What memory training takes: no run that ran is refused, and how many larger ones are taken to fit."""

from pathlib import Path

import pytest

from research.memory_fit import (
    BATCHES,
    DEVICE_BYTES,
    Kept,
    Run,
    accepted,
    fitted_reserve_bytes,
    page,
    read_kept,
    read_runs,
    refused,
)

ROOT = Path(__file__).parents[2]


def run_of(per_sample_bytes: float, batch_size: int) -> Run:
    kept = Kept(fixed_bytes=2**30, outputs_bytes=per_sample_bytes / 2, kept_bytes=per_sample_bytes)
    return Run(
        network="tf_efficientnet_b0", batch_size=batch_size, next_size=BATCHES[BATCHES.index(batch_size) - 1], kept=kept
    )


def test_the_reserve_is_the_largest_that_refuses_nothing() -> None:
    run = run_of((DEVICE_BYTES - 3 * 2**30) / 256, 256)  # 2 GiB are left beside fixed bytes and samples
    assert fitted_reserve_bytes([run]) == pytest.approx(2 * 2**30, rel=0.05)
    assert not refused([run], "kept", 2**30)
    assert refused([run], "kept", 3 * 2**30) == [run]
    assert accepted([run], "outputs", 0) == [run]
    assert not accepted([run], "kept", 0)
    assert run.family == "efficientnet"


@pytest.mark.measured
def test_no_run_that_ran_is_refused(data_folder: Path) -> None:
    runs = read_runs(data_folder, read_kept())
    assert len(runs) > 800
    assert not refused(runs, "kept", 2 * 2**30)
    bounded = [run for run in runs if run.next_size]
    assert len(accepted(runs, "kept", 2 * 2**30)) < 0.2 * len(bounded)


@pytest.mark.measured
def test_the_page_is_what_the_command_writes(data_folder: Path) -> None:
    assert (ROOT / "docs/accuracy_memory.md").read_text() == page(read_runs(data_folder, read_kept()))
