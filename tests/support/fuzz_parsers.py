"""Every reader of the program with the inputs that are made for it, and a test of its own for an input's outermost form."""

import csv
import gzip
import io
import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from datetime import date
from functools import cache
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import fuzz_seeds as seeds
from fuzz_binary import changed_onnx, changed_store
from fuzz_changes import Vocabulary, changed, changed_bytes, changed_lines, changed_table, edge_value
from fuzz_judge import Parser

import planner

__all__ = ["PARSERS", "by_name"]

_TODAY = date(2026, 11, 21)
_TOP = {
    "dnn",
    "cluster",
    "procure",
    "sweep",
    "configuration",
    "calibration",
    "objective",
    "constraints",
    "families",
    "fix",
}
_PLAN_S = 0.3
_PLANNED = 1 / 100  # of the questions that are accepted
_ASKED = 1 / 50  # of inputs that go through the whole command line

_MOST_JUDGED = 300_000  # letters of YAML, whose form is not looked for in larger texts: that would take minutes

Files = Mapping[str, bytes]


# -- writing ---------------------------------------------------------------------------------------------------------


def _text_of(document: Any, draw: Random) -> bytes:
    """A document as JSON, or as YAML with what YAML alone has; sometimes broken as bytes."""
    text = ""
    if draw.random() < 0.07:
        text = _yaml_text(document, draw)
    if not text:
        text = json.dumps(document, indent=draw.choice((None, 1)), ensure_ascii=draw.random() < 0.7)
    data = text.encode("utf-8", errors="surrogatepass")
    return changed_bytes(data, draw) if draw.random() < 0.06 else data


_BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
_ODD_SCALARS = (
    *("0b_", "0x" + "f" * 5000, "!!bool x", "!!int x", "!!float x", "!!omap x", "!!set x", "!!pairs x", "!!binary '*'"),
    *("!!omap [{a: 1}, {a: 2}]", "!!set {a, b}", "!!timestamp x", "!unknown {a: 1}", "&z {<<: *z}", "{<<: x}"),
)
_MERGES = "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 25))
_EXTRAS = (
    *(f"x: {one}\n" for one in _ODD_SCALARS),
    _MERGES,
    "a0: &a0 [1, 2, 3]\n" + _BOMB,
    "x: !!python/object/apply:os.system [ls]\n",
    "<<: {dnn: {zoo: vgg16}}\n",
    "loop: &l [*l]\n",
    "? [a, b]\n: 1\n",
    "%YAML 1.1\n---\n",
    "--- a\n...\n--- b\n",
    "day: 2026-01-01\n",
    "on: yes\n",
    "1: 2\n",
    "deep: " + "[" * 80 + "]" * 80 + "\n",
    "wide: {" + ", ".join(f"k{n}: {n}" for n in range(2000)) + "}\n",
)


def _yaml_text(document: Any, draw: Random) -> str:
    """A document as YAML; nothing where it cannot be written."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    stream = StringIO()
    try:
        YAML(typ="safe", pure=True).dump(document, stream)
        text = stream.getvalue()
    except (YAMLError, ValueError, RecursionError, UnicodeError):
        return ""
    if draw.random() < 0.3:
        text += draw.choice(_EXTRAS)
    return changed_lines(text, draw) if draw.random() < 0.4 else text


def _document(
    name: str, documents: Callable[[], Sequence[Any]], **more: Callable[[Random], bytes]
) -> Callable[[Random], Files]:
    """What makes a changed document of some, and writes it to a file, others beside it."""

    @cache
    def words() -> Vocabulary:
        return seeds.vocabulary(documents())

    def make(draw: Random) -> Files:
        found = changed(draw.choice(documents()), draw, words())
        return {name: _text_of(found, draw), **{other: write(draw) for other, write in more.items()}}

    return make


def _mostly(
    data: Callable[[], bytes], change: Callable[[bytes, Random], bytes], share: float
) -> Callable[[Random], bytes]:
    """What gives bytes, changed in a share of cases."""
    return lambda draw: change(data(), draw) if draw.random() < share else data()


def _table_change(data: bytes, draw: Random, separator: str | None = ",") -> bytes:
    """Changed bytes of a table, mostly by cells."""
    if draw.random() < 0.1:
        return changed_bytes(data, draw)
    text = data.decode()
    changed_text = changed_lines(text, draw) if draw.random() < 0.1 else changed_table(text, draw, separator=separator)
    return changed_text.encode("utf-8", errors="surrogatepass")


# -- recognising -----------------------------------------------------------------------------------------------------


def _plain(path: Path) -> Any:
    """The data of JSON or YAML text, read without our own reader."""
    text = path.read_bytes().decode("utf-8-sig")
    try:
        return json.loads(text)
    except ValueError:
        if len(text) > _MOST_JUDGED:
            raise
        from ruamel.yaml import YAML
        from ruamel.yaml.constructor import SafeConstructor

        class Sharing(SafeConstructor):
            """Keeps what merges bring in twice once: the library's own lists double with every merge of a merge."""

            def flatten_mapping(self, node: Any) -> None:
                super().flatten_mapping(node)
                node.value = list({id(key): (key, value) for key, value in node.value}.values())

        reader = YAML(typ="safe", pure=True)
        reader.Constructor = Sharing
        reader.max_depth = 64
        return reader.load(StringIO(text))


def _has_key(name: str, *keys: str) -> Callable[[Path], bool]:
    """Whether a file is a mapping that has one of some keys."""

    def recognises(folder: Path) -> bool:
        data = _plain(folder / name)
        return isinstance(data, dict) and any(key in data for key in keys)

    return recognises


def _has_columns(name: str, *columns: str) -> Callable[[Path], bool]:
    """Whether the header of a table has some columns, and a line stands below it."""

    def recognises(folder: Path) -> bool:
        text = (folder / name).read_bytes().decode("utf-8-sig")
        rows = [row for row in csv.reader(text.splitlines()) if row and not row[0].startswith("#")]
        return len(rows) > 1 and set(columns) <= {cell.strip() for cell in rows[0]}

    return recognises


def _is_plan(folder: Path) -> bool:
    data = json.loads((folder / "plan.json").read_bytes())
    return isinstance(data, dict) and data.get("schema") in ("planner.plan/1", "planner.procurement/1")


# -- reading ---------------------------------------------------------------------------------------------------------


def _command(*arguments: str) -> None:
    """Run the command line; a wrong exit code, or no document, is a defect."""
    from planner.cli.run import run

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*arguments, "--json"])
    assert code in (0, 1, 2, 3), f"exit code {code}: {err.getvalue()[-500:]}"
    assert "Traceback" not in err.getvalue(), err.getvalue()[-2000:]
    document = json.loads(out.getvalue(), parse_constant=lambda name: 1 / 0)
    assert "schema" in document, "a document without a schema"


def _question(folder: Path, draw: Random) -> None:
    """Load a question; plan some of them for a moment, and predict what is configured."""
    from planner.api import configuration_of

    if draw.random() < _ASKED:
        _command("plan", "spec.yaml", "--time-limit", f"{_PLAN_S} s")
        return
    problem = planner.load(folder / "spec.yaml")
    if problem.configuration is not None:
        _, configuration = configuration_of(problem)
        planner.predict(problem, configuration)
    elif draw.random() < _PLANNED:
        planner.plan(problem, time_limit_s=_PLAN_S)


def _configured(folder: Path, draw: Random) -> None:
    from planner.api import configuration_of, timeline

    if draw.random() < _ASKED:
        _command("predict", "spec.yaml")
        return
    problem = planner.load(folder / "spec.yaml")
    family, configuration = configuration_of(problem)
    planner.predict(problem, configuration)
    if draw.random() < _PLANNED:
        timeline(problem, family, configuration)


def _purchase(folder: Path, draw: Random) -> None:
    """Read a question of what to buy; answer a few of them."""
    from planner.procurement.question import load_procurement

    load_procurement(folder / "spec.yaml", today=_TODAY)
    if draw.random() < _PLANNED / 2:
        planner.procure(folder / "spec.yaml", num_alternatives=0, time_limit_s=_PLAN_S, today=_TODAY)


def _swept(folder: Path, draw: Random) -> None:
    """Read a sweep, and put some of its questions together."""
    from planner.sweep.question import load_sweep

    sweep = load_sweep(folder / "spec.yaml", time_limit_s=1.0)
    for position in {0, len(sweep.grid) // 2, len(sweep.grid) - 1}:
        sweep.task(position, _TODAY)


def _plan(folder: Path, draw: Random) -> None:
    """Do with a plan's file what commands do with it."""
    from planner.api import plan_of_file
    from planner.checks import report_text
    from planner.errors import InfeasibleError
    from planner.exporters import TARGETS
    from planner.procurement.check import check_file

    path, kind = folder / "plan.json", draw.randrange(12)
    if draw.random() < _ASKED:
        _command("check", "plan.json")
    elif kind < 5:
        report_text(check_file(path))
    elif kind < 8:
        plan_of_file(path)
    elif kind < 9:
        planner.compare(draw.choice(seeds.plans()), path)
    elif kind < 11:
        with suppress(InfeasibleError):
            planner.export(path, draw.choice(list(TARGETS)), script="train.py", image="image")
    else:
        planner.load(path)


def _imported(name: str, **options: Any) -> Callable[[Path, Random], None]:
    """What imports a file, and its block again."""

    def read(folder: Path, draw: Random) -> None:
        from planner.network_import import import_file

        if draw.random() < _ASKED:
            more = ["--profile-batch", "16"] if "batch_size" in options else []
            _command("import", name, *more)
            return
        found = import_file(folder / name, **options)
        json.dumps(found.to_document(), allow_nan=False)
        if draw.random() < 0.2 and found.key == "dnn":
            cluster = {"machines": [{"device": "v100", "count": 2, "network": "10 Gbit/s"}]}
            planner.load({"dnn": {**found.block, "batch_per_device": 8}, "cluster": cluster})

    return read


def _network_file(folder: Path, draw: Random) -> None:
    """Load a question that names the file of an imported network."""
    planner.load(folder / "spec.yaml")


def _trace(folder: Path, draw: Random) -> None:
    """Read a trace as a profile, or as a measured step beside a prediction."""
    from planner.api import measured_step

    name = "net.json.gz" if (folder / "net.json.gz").exists() else "net.json"
    if draw.random() < 0.3:
        measured_step(folder / name)
    else:
        _imported(name, batch_size=16)(folder, draw)


def _prices(folder: Path, draw: Random) -> None:
    from planner.procurement.prices import read_price_list

    if draw.random() < _ASKED:
        _command("show", "prices", "prices.csv")
        return
    read_price_list(folder / "prices.csv", today=_TODAY)


def _networks(folder: Path, draw: Random) -> None:
    """Read a table of network tiers."""
    from planner.procurement.question import read_networks

    read_networks(folder / "networks.csv", today=_TODAY)


def _measurements(folder: Path, draw: Random) -> None:
    """Read measurements, and fit to them what can be fitted."""
    from planner.calibration.benchmarks import read_files
    from planner.calibration.fits import Asked, fit_all
    from planner.calibration.report import calibration_text, document, text

    path = next(path for path in folder.iterdir() if path.name != "spec.yaml")
    found = read_files([path], num_devices=4 if path.name.startswith("osu_reduce") else None)
    if draw.random() < 0.6:  # to fit takes fifty times as long as to read
        return
    asked = Asked(spec=folder / "spec.yaml" if found.iterations else None, device="v100", dtype="fp32", batch_size=32)
    fitted = fit_all(found, asked)
    text(fitted)
    document(fitted, date="")
    calibration_text(fitted, date="")


def _run(folder: Path, draw: Random) -> None:
    """Read a measured run, and predict it."""
    from planner.calibration.benchmarks import read_files
    from planner.calibration.runs import compare

    found = read_files([folder / "run.json"])
    if found.runs:
        compare(found.runs).text()


def _case(folder: Path, draw: Random) -> None:
    from planner.case.run import run_folder

    run_folder(folder)


def _store(folder: Path, draw: Random) -> None:
    """Report on a store: as text, as rows, as a document and as a page."""
    from answers import summary_text

    from planner.answer.documents import dump
    from planner.cli.sweep import SweepOutput, _tell
    from planner.sweep.question import load_sweep
    from planner.sweep.report import export, summary_document, summary_of
    from planner.sweep.store import Store

    if draw.random() < _ASKED:
        _command("sweep", "spec.json", "--store", "store.sqlite", "--report")
        return
    sweep = load_sweep(folder / "spec.json", time_limit_s=60.0)
    with Store(folder / "store.sqlite") as store:
        found = summary_of(sweep, store)
        summary_text(found, sweep.grid)
        dump(summary_document(found, sweep.grid, identity=sweep.identity, is_complete=True))
        export(sweep, store, folder / draw.choice(("rows.csv", "rows.json")))
        for key in [row.answer.key for row in store.rows(sweep.identity)][:2]:
            store.document(key)
        store.begin(sweep, _TODAY)
        if draw.random() < 0.02:
            _tell(sweep, store, SweepOutput(html=folder / "page.html"), folder / "spec.json")


def _quantity(folder: Path, draw: Random) -> None:
    """Parse a quantity in every dimension; write it back."""
    from planner.errors import SpecError
    from planner.units import Dimension, format_exact, format_human, parse

    text = (folder / "text").read_bytes().decode("utf-8", errors="surrogatepass")
    wrong = []
    for dimension in Dimension:
        try:
            value = parse(text, dimension)
        except ValueError as error:
            if not str(error).strip():
                raise AssertionError("an error without words") from None
            wrong.append(str(error))
            continue
        assert 0 <= value < float("inf")
        assert parse(format_exact(value, dimension), dimension) == value
        format_human(value, dimension)
    if len(wrong) == len(Dimension):
        raise SpecError.of([_fault(wrong[0])])


def _fault(text: str) -> Any:
    """A fault of the text of a quantity: where it stands, who asks for it says."""
    from planner.errors import Fault

    problem, _, mend = text.partition(". ")
    return Fault(field="text", problem=ascii(problem), mend=ascii(mend or problem))


# -- making ----------------------------------------------------------------------------------------------------------


def _profile(draw: Random) -> Files:
    name, data = draw.choice(list(seeds.profiles().items()))
    separator = "," if name.endswith(".csv") else None
    if name.endswith("graph.txt"):
        text = changed_lines(data.decode(), draw).encode("utf-8", errors="surrogatepass")
        return {"net": changed_bytes(data, draw) if draw.random() < 0.05 else text}
    return {"net": _table_change(data, draw, separator)}


def _is_profile(folder: Path) -> bool:
    """Whether a profile has its header, or a line of an operator."""
    text = (folder / "net").read_bytes().decode("utf-8-sig")
    if re.search(r"^\S+ -- .+ -- ", text, re.MULTILINE):
        return True
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    header = lines[0].lower()
    return len(lines) > 1 and "name" in header and "forward" in header


def _trace_files(draw: Random) -> Files:
    document = changed(draw.choice(seeds.events()), draw, _event_words())
    data = json.dumps(document).encode("utf-8", errors="surrogatepass")
    if draw.random() < 0.06:
        data = changed_bytes(data, draw)
    if draw.random() < 0.25:
        packed = gzip.compress(data, 1)
        return {"net.json.gz": changed_bytes(packed, draw) if draw.random() < 0.1 else packed}
    return {"net.json": data}


@cache
def _event_words() -> Vocabulary:
    return seeds.vocabulary(seeds.events())


def _is_trace(folder: Path) -> bool:
    path = next(folder.iterdir())
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found = json.loads(data)
    return isinstance(found, dict) and isinstance(found.get("traceEvents"), list)


def _onnx_files(draw: Random) -> Files:
    data = draw.choices(seeds.onnx_files(), [4] * 5 + [1] * 3)[0]
    data = changed_onnx(data, draw)
    return {"net.onnx": changed_bytes(data, draw) if draw.random() < 0.06 else data}


def _is_onnx(folder: Path) -> bool:
    import onnx

    return bool(onnx.ModelProto.FromString((folder / "net.onnx").read_bytes()).graph.node)


def _launch(draw: Random) -> Files:
    name, text = draw.choice(seeds.launch_files())
    try:
        document = json.loads(text)
    except ValueError:
        found = changed_lines(text, draw).encode("utf-8", errors="surrogatepass")
    else:
        found = json.dumps(changed(document, draw, _launch_words())).encode("utf-8", errors="surrogatepass")
    if name.endswith((".yaml", ".yml")) and draw.random() < 0.1:
        found += draw.choice(_EXTRAS).encode()
    return {"launch": changed_bytes(found, draw) if draw.random() < 0.05 else found, "name": name.encode()}


@cache
def _launch_words() -> Vocabulary:
    documents = []
    for _, text in seeds.launch_files():
        try:
            documents.append(json.loads(text))
        except ValueError:
            continue
    return seeds.vocabulary(documents)


def _read_launch(folder: Path, draw: Random) -> None:
    """Import a launch file under its own name, since some are told by it."""
    name = (folder / "name").read_text()
    (folder / "launch").rename(folder / name)
    _imported(name)(folder, draw)


def _is_launch(folder: Path) -> bool:
    """Whether a launch file still has the comment, the key or the option by which its target is told."""
    from planner.errors import PlannerError
    from planner.exporters import degrees_of

    try:
        return (
            degrees_of(folder / (folder / "name").read_text(), (folder / "launch").read_text(encoding="utf-8"))
            is not None
        )
    except PlannerError:
        return True


def _measured(draw: Random) -> Files:
    name, text = draw.choice(list(seeds.calibration_tables().items()))
    data = _table_change(text.encode(), draw, "," if name.endswith(".csv") else None)
    if not name.endswith(".csv") and draw.random() < 0.6:  # blanks between the columns as they were
        data = changed_lines(text, draw).encode("utf-8", errors="surrogatepass")
    return {name: data, "spec.yaml": json.dumps(seeds.QUESTIONS[0]).encode()}


def _is_measured(folder: Path) -> bool:
    """Whether a header or a heading is there by which the kind of a measurement is told, and a line of numbers."""
    path = next(path for path in folder.iterdir() if path.name != "spec.yaml")
    text = path.read_bytes().decode("utf-8-sig")
    if path.suffix == ".txt":
        return ("OSU MPI" in text or "busbw" in text) and re.search(r"^\s*\d+\s+\d", text, re.MULTILINE) is not None
    rows = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return len(rows) > 1 and any(one in rows[0] for one in ("collective", "multiply_adds", "iteration_time"))


def _case_made(draw: Random) -> Files:
    files = dict(draw.choice(seeds.case_files()))
    found = {name: text.encode() for name, text in files.items()}
    if draw.random() < 0.75:
        document = changed(seeds.yaml_of(files["case.yaml"]), draw, _case_words())
        found["case.yaml"] = _text_of(document, draw)
    else:
        found["published.csv"] = _table_change(found["published.csv"], draw)
    return found


@cache
def _case_words() -> Vocabulary:
    return seeds.vocabulary([seeds.yaml_of(files["case.yaml"]) for files in seeds.case_files()])


def _is_case(folder: Path) -> bool:
    data = _plain(folder / "case.yaml")
    text = (folder / "published.csv").read_bytes().decode("utf-8-sig")
    return isinstance(data, dict) and "quantities" in data and text.splitlines()[0].startswith("quantity")


def _store_files(draw: Random) -> Files:
    asked, data = seeds.store()
    found = changed_store(data, draw)
    return {
        "spec.json": json.dumps(asked).encode(),
        "store.sqlite": changed_bytes(found, draw) if draw.random() < 0.08 else found,
    }


def _is_store(folder: Path) -> bool:
    db = sqlite3.connect(f"file:{folder / 'store.sqlite'}?mode=ro", uri=True)
    try:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        return application == 0x504C5357 and version == 1 and {"results", "members"} <= names
    finally:
        db.close()


def _quantity_made(draw: Random) -> Files:
    number = draw.choice(
        ("1", "0.5", "25", "-3", "1e9", "1e400", ".5", "5.", "1,5", "1_0", "٣", "0x1", "nan", "1e-400", "9" * 5000)
    )
    units = (
        "s",
        "ms",
        "µs",
        "GB",
        "GiB",
        "Gbit/s",
        "Gbps",
        "B",
        "b",
        "TFLOP/s",
        "W",
        "kWh",
        "USD",
        "USD/h",
        "samples/s",
        "GHz",
    )
    unit = draw.choice((draw.choice(units), draw.choice(units), str(edge_value(draw))[:200]))
    text = f"{draw.choice(('', '', ' ', '+'))}{number}{draw.choice((' ', '', '  ', chr(160)))}{unit}"
    return {"text": text.encode("utf-8", errors="surrogatepass")}


def _price_question(draw: Random) -> bytes:
    return _mostly(lambda: seeds.tables()["prices.csv"], _table_change, 0.1)(draw)


def _curve(draw: Random) -> bytes:
    return _mostly(lambda: b"size_bytes,seconds\n1024,0.00003\n1048576,0.0002\n67108864,0.01\n", _table_change, 0.3)(
        draw
    )


_NETWORK_QUESTION = {
    "dnn": {"file": "dnn.yaml", "batch_per_device": 8},
    "cluster": {"machines": [{"count": 2, "device": "v100", "network": "10 Gbit/s"}]},
}
_CALIBRATED = {**seeds.QUESTIONS[0], "calibration": "calibration.yaml"}


def _fixed(document: Any) -> Callable[[Random], bytes]:
    """The same file each time."""
    data = json.dumps(document).encode()
    return lambda draw: data


PARSERS: tuple[Parser, ...] = (
    Parser(
        name="spec",
        make=_document("spec.yaml", seeds.questions),
        recognises=_has_key("spec.yaml", *_TOP),
        read=_question,
        share=22,
    ),
    Parser(
        name="spec, configuration",
        make=_document("spec.yaml", seeds.configurations),
        recognises=_has_key("spec.yaml", *_TOP),
        read=_configured,
        share=14,
    ),
    Parser(
        name="spec, procure",
        make=_document(
            "spec.yaml",
            seeds.purchases,
            **{"prices.csv": _price_question, "networks.csv": lambda draw: seeds.tables()["networks.csv"]},
        ),
        recognises=_has_key("spec.yaml", "procure"),
        read=_purchase,
        share=7,
    ),
    Parser(
        name="spec, sweep",
        make=_document("spec.yaml", seeds.sweeps_asked),
        recognises=_has_key("spec.yaml", "sweep"),
        read=_swept,
        share=5,
    ),
    Parser(name="plan", make=_document("plan.json", seeds.plans), recognises=_is_plan, read=_plan, share=9),
    Parser(
        name="network file",
        make=_document("dnn.yaml", seeds.network_files, **{"spec.yaml": _fixed(_NETWORK_QUESTION)}),
        recognises=_has_key("dnn.yaml", "dnn", "layers", "transformer"),
        read=_network_file,
        share=4,
    ),
    Parser(
        name="calibration file",
        make=_document(
            "calibration.yaml", seeds.calibrations, **{"spec.yaml": _fixed(_CALIBRATED), "curve.csv": _curve}
        ),
        recognises=lambda folder: isinstance(_plain(folder / "calibration.yaml"), dict),
        read=_network_file,
        share=4,
    ),
    Parser(name="profile", make=_profile, recognises=_is_profile, read=_imported("net", batch_size=16), share=6),
    Parser(name="trace of torch.profiler", make=_trace_files, recognises=_is_trace, read=_trace, share=3),
    Parser(
        name="config.json",
        make=_document("config.json", seeds.hugging_face),
        recognises=_has_key("config.json", "model_type", "architectures"),
        read=_imported("config.json"),
        share=8,
    ),
    Parser(name="ONNX", make=_onnx_files, recognises=_is_onnx, read=_imported("net.onnx"), share=5),
    Parser(
        name="price list",
        make=lambda draw: {"prices.csv": _table_change(seeds.tables()["prices.csv"], draw)},
        recognises=_has_columns("prices.csv", "provider", "instance", "device"),
        read=_prices,
        share=2,
    ),
    Parser(
        name="network tiers",
        make=lambda draw: {"networks.csv": _table_change(seeds.tables()["networks.csv"], draw)},
        recognises=_has_columns("networks.csv", "name", "ports"),
        read=_networks,
        share=2,
    ),
    Parser(name="measurements", make=_measured, recognises=_is_measured, read=_measurements, share=3),
    Parser(
        name="measured run",
        make=_document("run.json", seeds.runs),
        recognises=_has_key("run.json", "inputs"),
        read=_run,
        share=2,
    ),
    Parser(name="launch file", make=_launch, recognises=_is_launch, read=_read_launch, share=3),
    Parser(name="case", make=_case_made, recognises=_is_case, read=_case, share=1),
    Parser(name="store of a sweep", make=_store_files, recognises=_is_store, read=_store, share=4),
    Parser(
        name="quantity",
        make=_quantity_made,
        recognises=lambda folder: re.match(rb"\s*[+-]?[\d.]+", (folder / "text").read_bytes()) is not None,
        read=_quantity,
        share=3,
    ),
)


def by_name() -> dict[str, Parser]:
    return {parser.name: parser for parser in PARSERS}
