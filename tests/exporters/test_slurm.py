"""The export for Slurm: what is asked of it, and which machine runs which script, seen through a made-up srun."""

from pathlib import Path

import pytest
from exported import TELLS, planned, question, run_shell, written

import planner
from planner.errors import InfeasibleError, SpecError
from planner.exporters.starters import EXPORTERS

# Two components of a heterogeneous job, or one; srun runs its last word on every node, as slurmd would.
SCONTROL = 'for one in ${3//,/ }; do echo "$one"; done'
SRUN = (
    'for one in ${SLURM_JOB_NODELIST_HET_GROUP_0//,/ } ${SLURM_JOB_NODELIST_HET_GROUP_1//,/ }; do SLURMD_NODENAME="$one" bash -c "${@: -1}" | sed "s/^/$one: /"; done\n'
    'echo "srun: ${@:1:$#-2}"'
)


def run_job(folder: Path, name: str, *lists: str, **settings: str) -> list[str]:
    """What the machines of a job print, and srun's options."""
    written(folder, planner.export(planned(name), "slurm", **settings).files)
    nodes = {f"SLURM_JOB_NODELIST_HET_GROUP_{index}": one for index, one in enumerate(lists)}
    nodes |= {"SLURM_JOB_NODELIST": lists[0], "SLURM_SUBMIT_DIR": str(folder)}
    return run_shell(folder, "job.sbatch", {"scontrol": SCONTROL, "srun": SRUN, "torchrun": TELLS}, **nodes)


def directives(key: str, **settings: str) -> list[str]:
    """The lines that Slurm reads."""
    text = planner.export(planned(key), "slurm", **settings).files["job.sbatch"]
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


def test_equal_machines_are_asked_for_in_one_block() -> None:
    assert directives("alike", name="My Net") == [
        "#SBATCH --job-name=my-net",
        "#SBATCH --output=%x-%j.out",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
    ]


def test_unlike_machines_are_components_of_one_job_by_their_types() -> None:
    found = directives("mixed")
    assert found.count("#SBATCH hetjob") == 1
    first, second = found[: found.index("#SBATCH hetjob")], found[found.index("#SBATCH hetjob") :]
    assert "#SBATCH --nodes=2" in first
    assert "#SBATCH --gpus-per-node=v100-sxm2-16g:4" in first
    assert "#SBATCH --nodes=3" in second
    assert "#SBATCH --gpus-per-node=k80:2" in second


def test_every_machine_gets_its_rank_and_the_address_of_the_first(tmp_path: Path) -> None:
    *machines, srun = run_job(tmp_path, "alike", "a7,a3,a9,a1")
    for rank, (node, line) in enumerate(zip(("a7", "a3", "a9", "a1"), machines, strict=True)):
        assert line.startswith(f"{node}: [--nnodes][4][--nproc-per-node][8][--node-rank][{rank}][--master-addr][a7]")
    assert srun == "srun: --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=1 bash"


def test_the_names_of_thousands_of_machines_are_not_too_long_for_a_program_to_be_started(tmp_path: Path) -> None:
    names = "for one in $(seq 0 9999); do echo a-machine-with-a-long-name-$one; done"
    last = 'SLURMD_NODENAME=a-machine-with-a-long-name-9999 bash -c "${@: -1}"'
    written(tmp_path, planner.export(planned("alike"), "slurm").files)
    programs = {"scontrol": names, "srun": last, "torchrun": TELLS}
    (line,) = run_shell(tmp_path, "job.sbatch", programs, SLURM_SUBMIT_DIR=str(tmp_path), SLURM_JOB_NODELIST="all")
    assert "[--node-rank][9999][--master-addr][a-machine-with-a-long-name-0]" in line


def test_ranks_go_on_through_the_components_of_a_heterogeneous_job(tmp_path: Path) -> None:
    *machines, srun = run_job(tmp_path, "mixed", "n1,n2", "o5,o6,o7")
    for rank, (node, devices) in enumerate((("n1", 4), ("n2", 4), ("o5", 2), ("o6", 2), ("o7", 2))):
        start = f"{node}: [--nnodes][5][--nproc-per-node][{devices}][--node-rank][{rank}][--master-addr][n1]"
        assert machines[rank].startswith(start)
    assert srun.startswith("srun: --het-group=0-1 ")


def test_horovod_is_started_once_with_all_hosts(tmp_path: Path) -> None:
    written(tmp_path, planner.export(planned("mixed"), "slurm", program="horovod").files)
    nodes = {"SLURM_JOB_NODELIST_HET_GROUP_0": "n1,n2", "SLURM_JOB_NODELIST_HET_GROUP_1": "o5,o6,o7"}
    programs = {"scontrol": SCONTROL, "horovodrun": TELLS}
    (line,) = run_shell(tmp_path, "job.sbatch", programs, SLURM_SUBMIT_DIR=str(tmp_path), **nodes)
    assert line.startswith("[-np][14][-H][n1:4,n2:4,o5:2,o6:2,o7:2]")


def test_a_layout_of_a_transformer_is_trained_by_megatron_unless_asked_otherwise() -> None:
    found = planner.export(planned("hybrid"), "slurm")
    assert "Megatron-LM" in found.files["job.sbatch"]
    assert "pretrain_gpt.py" in found.files["launch.sh"]
    with pytest.raises(InfeasibleError, match="tensor 2"):
        planner.export(planned("hybrid"), "slurm", program="ddp")
    assert "planned_ddp.py" in planner.export(planned("copies"), "slurm", program="ddp").files
    asked = {**question("copies"), "dnn": {"zoo": "vit-b-16", "global_batch": 64, "dtype": "bf16"}}
    found = planner.export(planner.plan(planner.load(asked)), "slurm")  # Megatron-LM's pretrain_gpt.py has no images
    assert "deepspeed trains" in found.files["job.sbatch"]


@pytest.mark.parametrize(
    ("name", "program", "kind", "why"),
    [
        ("servers", None, InfeasibleError, "parameter servers"),
        ("replicas", None, InfeasibleError, "parameter servers"),
        ("pipeline", None, InfeasibleError, "deepspeed cannot run this plan: all its stages have as many replicas"),
        ("alike", "skypilot", SpecError, "starts machines, as slurm does"),
        ("alike", "dpp", SpecError, "Did you mean 'ddp'"),
    ],
)
def test_what_slurm_cannot_start_is_refused(name: str, program: str | None, kind: type[Exception], why: str) -> None:
    with pytest.raises(kind, match=why):
        planner.export(planned(name), "slurm", program=program)


@pytest.mark.parametrize("name", ["alike", "mixed", "passes", "hybrid"])
def test_a_script_read_back_pins_the_same_machines(name: str) -> None:
    plan = planned(name)
    text = planner.export(plan, "slurm").files["job.sbatch"]
    path = Path("job.sbatch")
    assert EXPORTERS["slurm"].recognises(path, text)
    pins = EXPORTERS["slurm"].degrees(path, text)
    asked = question(name)
    again = planner.plan(planner.load({**asked, "fix": {**asked.get("fix", {}), **pins}}))
    assert again.configuration == plan.configuration


def test_a_script_that_was_changed_in_one_place_only_is_refused() -> None:
    text = planner.export(planned("mixed"), "slurm").files["job.sbatch"]
    with pytest.raises(SpecError, match="asks for 7 nodes, and its head says otherwise"):
        EXPORTERS["slurm"].degrees(Path("job.sbatch"), text.replace("--nodes=3", "--nodes=5"))
    with pytest.raises(SpecError, match="--gpus-per-node is 4, 1"):
        EXPORTERS["slurm"].degrees(Path("job.sbatch"), text.replace("k80:2", "k80:1"))
    assert not EXPORTERS["slurm"].recognises(Path("x"), "#!/bin/bash\n#SBATCH --nodes=2\n")
