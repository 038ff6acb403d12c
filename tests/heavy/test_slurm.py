"""The export for Slurm, as a private controller sees it: ``sbatch --test-only``, and a job on made-up nodes."""

import getpass
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from exported import TELLS, planned, written
from guards import free_port

import planner

_PROGRAMS = ("slurmctld", "sbatch", "munged")
_MISSING = [name for name in _PROGRAMS if shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin") is None]
pytestmark = pytest.mark.skipif(
    bool(_MISSING), reason=f"{', '.join(_MISSING)} not installed: apt-get install slurmctld slurm-client munge"
)
_CPUS = "CPUs=64 Boards=1 SocketsPerBoard=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=500000"


# Machines that are never started, with accelerators; and some without that all stand on this one.
CLOUD = f"""
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SuspendTime=-1
SuspendProgram=/bin/true
ResumeProgram=/bin/true
NodeName=new[1-4] {_CPUS} Gres=gpu:v100-sxm2-16g:8 State=CLOUD
NodeName=old[1-4] {_CPUS} Gres=gpu:k80:2 State=CLOUD
"""
NODES = ("n1", "n2", "o1", "o2", "o3")


def here() -> str:
    """Nodes that are all this machine, each with its port."""
    rows = [f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=2" for name in NODES]
    return "\n".join(["SelectTypeParameters=CR_Core", "SlurmdParameters=config_overrides", *rows])


def configuration(folder: Path, user: str, nodes: str) -> str:
    """A cluster; the controller listens on the loopback only."""
    return f"""
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdUser={user}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SelectType=select/cons_tres
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A controller of machines that are never started; the environment that reaches it."""
    with started(tmp_path_factory.mktemp("slurm"), CLOUD, ()) as found:
        yield found


@contextmanager
def started(folder: Path, nodes: str, names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Run a controller with its own munged, and a daemon for each of the nodes that are named."""
    for parent in (folder, folder.parent):
        parent.chmod(0o755)
    for name in ("state", "spool", *(f"spool/{name}" for name in names)):
        (folder / name).mkdir()
    (folder / "key").write_bytes(b"k" * 1024)
    (folder / "key").chmod(0o600)
    (folder / "slurm.conf").write_text(configuration(folder, getpass.getuser(), nodes))
    paths = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLURM_CONF": str(folder / "slurm.conf")}
    options = {"key-file": "key", "socket": "munge.sock", "pid-file": "munged.pid", "log-file": "munged.log"}
    files = [f"--{option}={folder}/{name}" for option, name in {**options, "seed-file": "seed"}.items()]
    munged = subprocess.Popen(["munged", "--foreground", "--force", *files], env=paths, stderr=subprocess.DEVNULL)
    controller = subprocess.Popen(
        ["slurmctld", "-D", "-i", "-f", paths["SLURM_CONF"]], env=paths, stderr=subprocess.DEVNULL
    )
    daemons = [
        subprocess.Popen(["slurmd", "-D", "-N", name, "-f", paths["SLURM_CONF"]], env=paths, stderr=subprocess.DEVNULL)
        for name in names
    ]
    try:
        for _ in range(100):
            ping = subprocess.run(["scontrol", "ping"], env=paths, capture_output=True, text=True, check=False)
            if "UP" in ping.stdout:
                break
            time.sleep(0.2)
        else:
            pytest.skip(f"slurmctld does not start here: {(folder / 'slurmctld.log').read_text()[-500:]}")
        yield paths
    finally:
        for process in (*daemons, controller, munged):
            process.terminate()
            process.wait(timeout=20)


def test_only(slurm: dict[str, str], folder: Path, text: str | None = None) -> tuple[int, str]:
    """What sbatch says of a job: exit code and words."""
    if text is not None:
        (folder / "job.sbatch").write_text(text)
    done = subprocess.run(
        ["sbatch", "--test-only", "job.sbatch"], cwd=folder, env=slurm, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


test_only.__test__ = False  # type: ignore[attr-defined]  # named as sbatch's option


def test_slurm_would_start_a_job_of_equal_machines(slurm: dict[str, str], tmp_path: Path) -> None:
    written(tmp_path, planner.export(planned("alike"), "slurm", name="My Net").files)
    code, words = test_only(slurm, tmp_path)
    assert code == 0, words
    assert re.search(r"to start at .* using 256 processors on nodes new\[1-4\] in partition main", words)


def test_slurm_would_start_a_job_of_unlike_machines(slurm: dict[str, str], tmp_path: Path) -> None:
    written(tmp_path, planner.export(planned("mixed"), "slurm").files)
    code, words = test_only(slurm, tmp_path)
    assert code == 0, words
    assert re.search(r"using 320 processors on new\[1-2\],old\[1-3\]", words)


def test_slurm_would_start_what_trains_a_transformer(slurm: dict[str, str], tmp_path: Path) -> None:
    written(tmp_path, planner.export(planned("hybrid"), "slurm").files)
    code, words = test_only(slurm, tmp_path)
    assert code == 0, words
    assert "on nodes new[1-2]" in words


def test_a_heterogeneous_job_runs_and_every_machine_has_its_rank(tmp_path: Path) -> None:
    if shutil.which("slurmd", path="/usr/sbin") is None or getpass.getuser() != "root":
        pytest.skip("slurmd is not installed, or not run by root: apt-get install slurmd")
    job = tmp_path / "job"
    (job / "bin").mkdir(parents=True)
    written(job, planner.export(planned("mixed"), "slurm").files)
    lines = (job / "job.sbatch").read_text().splitlines(keepends=True)
    # The made-up nodes have neither accelerators nor so much memory; the rest is as exported.
    kept = [line for line in lines if not line.startswith(("#SBATCH --gpus-per-node", "#SBATCH --mem"))]
    (job / "job.sbatch").write_text("".join(kept))
    (job / "bin" / "torchrun").write_text(f'#!/usr/bin/env bash\nprintf "%s " "$SLURMD_NODENAME"; {TELLS}\n')
    (job / "bin" / "torchrun").chmod(0o755)
    with started(tmp_path, here(), NODES) as paths:
        environment = {**paths, "PATH": f"{job / 'bin'}:{paths['PATH']}"}
        done = subprocess.run(
            ["sbatch", "--wait", "job.sbatch"],
            cwd=job,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    (output,) = job.glob("*.out")
    assert done.returncode == 0, done.stderr + output.read_text()
    lines = output.read_text().splitlines()
    # These nodes have no plugin that binds processors, of which srun speaks.
    lines = [line for line in lines if line != "srun: cluster configuration lacks support for cpu binding"]
    said = sorted(line.partition("[--master-port]")[0] for line in lines)
    assert said == [
        f"{name} [--nnodes][5][--nproc-per-node][{4 if name[0] == 'n' else 2}][--node-rank][{rank}][--master-addr][n1]"
        for rank, name in enumerate(NODES)
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--nodes=4", "--nodes=40", "Requested node configuration is not available|More processors"),
        ("--gpus-per-node=8", "--gpus-per-node=9", "Requested node configuration is not available"),
        ("--exclusive", "--exclusives", "unrecognized option"),
        ("--nodes=4", "--nodes=4 --partition=none", "invalid partition"),
        ("--gpus-per-node=8", "--gpus-per-node=h100:8", "Invalid generic resource|node configuration is not available"),
    ],
)
def test_slurm_refuses_a_job_that_was_changed_for_the_worse(
    slurm: dict[str, str], tmp_path: Path, old: str, new: str, words: str
) -> None:
    text = planner.export(planned("alike"), "slurm").files["job.sbatch"]
    assert old in text
    code, said = test_only(slurm, tmp_path, text.replace(old, new))
    assert code != 0
    assert re.search(words, said), said
