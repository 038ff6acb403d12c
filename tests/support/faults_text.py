"""Text as other systems write it, names as file systems allow them, and files that are none: what is tried on each."""

import codecs
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from faults import Server, temporary_of, wrong_of

FORMS: dict[str, Callable[[bytes], bytes]] = {
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\n", b"\r"),
    "BOM": lambda data: codecs.BOM_UTF8 + data,
    "BOM and CRLF": lambda data: codecs.BOM_UTF8 + data.replace(b"\n", b"\r\n"),
    "no last line end": lambda data: data.rstrip(),
}
# A spec over several lines, so that line ends matter.
YAML = """\
# ein Kommentar: größer
dnn:
  zoo: alexnet
  batch_per_device: 32
  dataset_samples: 1000
cluster:
  machines:
    - {count: 2, devices: 2, device: rtx-2080-ti, network: 10 Gbit/s}
families: [all_reduce]
"""
READ = (
    ("y.yaml", "plan y.yaml"),
    ("plan.json", "predict plan.json"),
    ("plan.json", "check plan.json"),
    ("prices.csv", "show prices prices.csv"),
    ("layers.csv", "import layers.csv --profile-batch 8"),
    ("timings.csv", "calibrate timings.csv"),
)
NAMES = (
    b"a b",
    b"a\nb",
    b"q'\"`$(touch gone)",
    b"-x",
    "é".encode(),
    "e\u0301".encode(),
    "\U0001f600".encode(),
    b"\xff\xfe",
    b"*",
    b"<script>alert(1)<",
    b"%s{0}[bold]",
    b"x\x1b[31m",
)


NO_FILES = (".", "pipe", "huge", "/dev/zero", "/dev/null")
READERS_OF_ANY = (
    "plan {}",
    "predict {}",
    "check {}",
    "sweep {}",
    "procure {}",
    "explain {}",
    "compare {} plan.json",
    "import {}",
    "calibrate {}",
    "export {} --to ddp",
    "show prices {}",
)


def try_forms(server: Server, folder: Path, name: str, line: str) -> None:
    """Line ends and marks of other systems change no answer; other encodings are refused."""
    (folder / "y.yaml").write_text(YAML, encoding="utf-8")
    data = (folder / name).read_bytes()
    whole = server.run(*line.split(), folder=folder)
    assert not wrong_of(whole, (0,))
    for form, change in FORMS.items():
        (folder / name).write_bytes(change(data))
        ended = server.run(*line.split(), folder=folder)
        assert (ended.code, ended.out) == (0, whole.out), form
    for encoding in ("utf-16", "utf-32", "latin-1"):
        (folder / name).write_bytes(("\u00fc" + data.decode()).encode(encoding))
        ended = server.run(*line.split(), folder=folder)
        assert not wrong_of(ended, (2,)), encoding
        assert any(word in ended.err for word in ("UTF", "binary")), ended.words


def try_name(server: Server, folder: Path, name: bytes) -> None:
    """Files of an odd name are read and written, and stand escaped in a page."""
    spec, plan, page = (os.fsdecode(b"./" + name + ending) for ending in (b".yaml", b".json", b".html"))
    shutil.copy(folder / "q.yaml", folder / spec)
    assert not wrong_of(server.run("plan", spec, "--out", plan, folder=folder), (0,))
    assert json.loads((folder / plan).read_bytes())["status"] == "optimal"
    for words in (("check", plan), ("compare", plan, plan)):
        assert not wrong_of(server.run(*words, folder=folder), (0,)), words
    assert not wrong_of(server.run("plan", f"{spec}gone", folder=folder), (2,))
    shutil.copy(folder / "s.yaml", folder / spec)
    assert not wrong_of(server.run("sweep", spec, "--html", page, folder=folder), (0,))
    assert b"<script>alert" not in (folder / page).read_bytes()
    assert not temporary_of(folder)
    assert not (folder / "gone").exists()


def try_no_files(server: Server, folder: Path, lines: Sequence[str]) -> None:
    """What is no file, or an endless one, is refused as an input."""
    os.mkfifo(folder / "pipe")
    with (folder / "huge").open("wb") as file:
        file.truncate(3 * 2**30)
    for name in NO_FILES:
        for line in lines:
            ended = server.run(*line.format(name).split(), folder=folder, limits={"RLIMIT_AS": 4 * 2**30})
            assert not wrong_of(ended, (2,)), line.format(name)
