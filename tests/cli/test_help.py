"""What ``--help`` says is what happens: every flag is taken with a value, every example runs, and pages name no other."""

import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import docs_pages
import pytest
from docs_commands import PLANNER, ROOT, blocks, pages
from onnx_graphs import model_of, node, saved
from purchases import row, write_list
from pytest import CaptureFixture, MonkeyPatch
from rich.markup import render
from typer.main import get_command

from planner.cli.run import program, run


def commands() -> dict[str, Any]:
    """All commands, by the words that name them."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        inner: Mapping[str, Any] = getattr(command, "commands", {})
        for name, one in inner.items():
            yield from walk(one, (*words, name))
        if not inner:
            yield " ".join(words), command

    return dict(walk(get_command(program()), ()))


COMMANDS = commands()


def flags_of(name: str) -> set[str]:
    """The flags of a command, by their long names."""
    return {flag for one in COMMANDS[name].params for flag in (*one.opts, *one.secondary_opts) if flag.startswith("--")}


def used(words: tuple[str, ...]) -> tuple[str, set[str]]:
    """Which command a line calls, and its flags; short ones by their long names."""
    name = " ".join(words[1:3]) if " ".join(words[1:3]) in COMMANDS else words[1]
    long = {flag: one.opts[0] for one in COMMANDS[name].params for flag in one.opts} if name in COMMANDS else {}
    given = [word.split("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)]
    return name, {long.get(flag, flag) for flag in given}


@cache
def documented() -> Mapping[str, set[str]]:
    """The flags in the commands of all pages, which tests run: see tests/docs."""
    found: dict[str, set[str]] = {name: set() for name in COMMANDS}
    for page in pages():
        for block in blocks(page):
            for command in block.commands:
                for call in command.parts:
                    if call.program in PLANNER:
                        name, flags = used(call.words)
                        found.setdefault(name, set()).update(flags)
    return found


# Lines that no page has, in their order; those of a group go on with each other's files. {scheduler} is an address where
# somebody listens: what is short asks no scheduler.
SMALL = "--dnn vgg16 --cluster osf-testbed --families all_reduce"
LINES: dict[str, str] = {
    "plan": f"""
        plan {SMALL} --dtype fp32 --epochs 2 --dataset-samples 1000 --objective training_time --memory-limit '8 GiB'
        plan {SMALL} --samples 5M --explain --html page.html --time-limit '2 s' --scheduler {{scheduler}}
        plan --dnn qwen3-0.6b --machines 1x8xa100-sxm4-80gb --global-batch 8 --precision bf16 --optimizer adam --tokens 1B --mtp-layers 1 --frontier --prefer-safe
        plan --dnn cnn.pt.trace.json.gz --profile-batch 16 --machines 2xv100 --network '10 Gbit/s' --batch 16 --trace t.json --measured cnn.pt.trace.json.gz
    """,
    "plans": f"""
        plan {SMALL} --out plan.json
        predict plan.json --json --memory-limit '8 GiB' --trace p.json --trace-devices kinds --trace-iterations 2
        predict plan.json --run nets:net
        explain plan.json --json --time-limit '2 s' --memory-limit '8 GiB'
        compare plan.json plan.json --json
        check plan.json --json
        export plan.json --to slurm --program ddp --out job
        export plan.json --to slurm --program ddp --out job --force
        calibrate plan.json --plan-measurements --range network=0.8..1.1 --time-limit '2 s' --memory-limit '8 GiB'
    """,
    "procure": """
        procure --dnn alexnet --global-batch 256 --samples 1M --prices prices.csv --as-of any --regions east --providers acme --terms on-demand --families all_reduce --objective cost --deadline '9 h' --power '2 MW' --top 1 --time-limit '9 s' --memory-limit '8 GiB' --workers 1 --html page.html
        procure --dnn alexnet --global-batch 256 --epochs 1 --dataset-samples 100000 --prices prices.csv --deadline '9 h' --families all_reduce --scheduler {scheduler} --json
        procure --dnn bert-base --sequence-length 512 --global-batch 8 --samples 1M --prices prices.csv --deadline '900 days'
    """,
    "sweep": """
        sweep sweep.yaml --store s.sqlite --time-limit '9 s' --memory-limit '8 GiB'
        sweep sweep.yaml --store s.sqlite --time-limit '9 s' --memory-limit '8 GiB' --scheduler {scheduler}
    """,
    "show": """
        init --procure
        schema --json
        case osf-table-2 --json
    """,
    "calibrate": """
        calibrate --template layers
        calibrate allreduce.log --devices 4 --date 2026-11-02 --form affine --json
        calibrate allreduce2.log allreduce4.log --spec spec.yaml --law-only -o law.yaml --plot fit.svg
        calibrate alexnet.trace.txt --spec alexnet.yaml --device k80 --dtype fp32 --batch 1024
        calibrate --measure
    """,
    "serve": """
        serve --host 127.0.0.1 --port 0 --name planner.example --workers 1 --time-limit '9 s' --memory-limit '1 GiB' --no-open
        serve --open
    """,
    "import": """
        import --template
        import model.onnx --dimension sequence=128 --json
        import config.json --text-only --sequence-length 128
        prices import vms.csv --provider aws --date 2026-11-02 --region 'us-*' --rate EUR=1.08USD --json
    """,
}
# Flags that no line has, and where else they are tried.
ELSEWHERE = {"case --all": "make cases"}
SWEEP = "dnn: {zoo: vgg16}\ncluster: {preset: osf-testbed}\nfamilies: [all_reduce]\nsweep: {vary: {dnn.batch_per_device: [8, 16]}}\n"
SPEC = "dnn: {zoo: resnet50, batch_per_device: 32}\ncluster: {machines: [{count: 8, device: k80, network: 10 Gbit/s}]}\nfamilies: [all_reduce]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: MonkeyPatch) -> Path:
    """The current folder, with what the lines read."""
    monkeypatch.chdir(tmp_path)
    sizes = [2**power for power in range(8, 26)]
    for name, devices in (("allreduce.log", 4), ("allreduce2.log", 2), ("allreduce4.log", 4)):
        rows = [f"{size} {50 + 2 * (devices - 1) * (10 + size / devices / 750):.2f}" for size in sizes]
        Path(name).write_text("\n".join(["# OSU MPI Allreduce Latency Test", "# Size  Avg Latency(us)", *rows]) + "\n")
    write_list(Path("prices.csv"), [row("small", power_w=200), row("large", device="v100", usd_per_h=3.5, power_w=400)])
    texts = {
        "sweep.yaml": SWEEP,
        "spec.yaml": SPEC,
        "alexnet.yaml": SPEC.replace("resnet50", "alexnet"),
        "nets.py": "def net(): ...",
    }
    catalogue = docs_pages.FILES["docs/prices.md"]["catalogs/v8/aws/vms.csv"]
    for name in ("vms.csv", "catalogs/v8/aws/vms.csv"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(str(catalogue))
    for name, text in texts.items():
        Path(name).write_text(text)
    for name, file in (
        ("cnn.pt.trace.json.gz", docs_pages.DATA / "cnn.pt.trace.json.gz"),
        ("alexnet.trace.txt", ROOT / "planner/data/examples/alexnet-k80.trace.txt"),
        ("config.json", ROOT / "docs/gallery/own-config/config.json"),
    ):
        Path(name).symlink_to(file)
    for name, sizes_of_a_sample in (("model.onnx", ["sequence", 8]), ("resnet50.onnx", [8])):
        graph = model_of([node("MatMul", "x w")], {"x": ["batch", *sizes_of_a_sample]}, {"w": [8, 8]})
        saved(graph, tmp_path, name)
    monkeypatch.setattr("planner.serve.app.serve", lambda *_, **__: None)  # it would go on; tests/serve starts it
    return tmp_path


def lines(group: str) -> list[str]:
    return [line.strip() for line in LINES[group].strip().splitlines()]


@pytest.mark.parametrize("group", LINES)
def test_flags_are_taken_with_a_value(group: str, folder: Path, capsys: CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for line in lines(group):
            words = shlex.split(line.format(scheduler=f"tcp://127.0.0.1:{listening.getsockname()[1]}"))
            assert run(words) == 0, (line, capsys.readouterr().err)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_of_help_stands_on_a_page_or_in_a_line_that_is_run(name: str, capsys: CaptureFixture[str]) -> None:
    tried = set(documented()[name])
    for line in (one for group in LINES for one in lines(group)):
        command, flags = used(("planner", *shlex.split(line)))
        tried |= flags if command == name else set()
    tried |= {flag for command, _, flag in (one.rpartition(" ") for one in ELSEWHERE) if command == name}
    assert run([*name.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    said = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", printed.partition("Options:")[2])) - {"--help"}
    assert flags_of(name) - {"--help"} <= said
    assert flags_of(name) - {"--help"} - tried == set()


def examples() -> list[str]:
    """The lines that helps give as examples."""
    found = [re.search(r"E\.g\. planner (.*)", one.help or "") for one in COMMANDS.values()]
    return [match[1] for match in found if match]


@pytest.mark.parametrize("line", examples())
def test_the_example_of_a_help_runs(line: str, folder: Path, capsys: CaptureFixture[str]) -> None:
    if ("README.md", f".venv/bin/planner {line}") in docs_pages.LONG:
        return  # tests/heavy runs it
    words = [word for word in shlex.split(line) if not line.startswith("sweep") or word not in ("--workers", "4")]
    assert run(words) == 0, capsys.readouterr().err


def test_pages_name_only_flags_that_are_there() -> None:
    for page in pages():
        for inline in re.findall(r"`(planner [a-z][^`]*)`", (ROOT / page).read_text(encoding="utf-8")):
            words = tuple(word for word in inline.split() if word != "...")
            name, flags = used(words)
            if name in COMMANDS:
                assert flags <= flags_of(name), (page, inline)


@pytest.mark.parametrize("words", [[], ["prices"]])
def test_no_arguments_at_all_print_the_help_and_nothing_else(words: list[str], capsys: CaptureFixture[str]) -> None:
    assert run(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("Usage: planner ")
    assert "Try --help" not in said.err
    assert said.out == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_shells_show_the_words_of_flags_as_they_are(name: str) -> None:
    texts = [COMMANDS[name].help, *(one.help for one in COMMANDS[name].params if getattr(one, "help", None))]
    for text in texts:  # typer takes them for rich's markup: of torch:package:factory fish showed an emoji
        assert render(text).plain == text


@pytest.mark.parametrize(("command", "first"), [("show", "dnn"), ("schema", "spec")])
def test_a_word_that_is_not_to_choose_is_refused_plainly(command: str, first: str, capsys: CaptureFixture[str]) -> None:
    assert run([command, "nonsense"]) == 2
    assert f": 'nonsense' is not one of '{first}', " in capsys.readouterr().err
