"""The local page over HTTP: who may ask, what may be asked, limits, and that nobody sees another's answers."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the page's libraries are not installed")
pytest.importorskip("plotly", reason="the page's libraries are not installed")

import httpx2
from starlette.testclient import TestClient
from sweeps import SLOW

from planner.cli.run import run
from planner.errors import NoAnswerError, SpecError, StoppedError
from planner.families.answer import TOO_SHORT
from planner.search import Search
from planner.serve.app import _Protocol, app_of
from planner.serve.form import checked_form, checked_values
from planner.serve.searches import Limits, Searches
from planner.serve.worker import _told as told_by_worker

ADDRESS = "http://localhost:8000"
LIMITS = Limits(num_processes=2, most_s=20.0, num_of_session=3, upload_bytes=2**20)
QUICK = {"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "osf-testbed"}, "families": ["all_reduce"]}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_hidden_layers": 4, "num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 512, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


class Page:
    """A page in a browser: its session, and requests as it sends them."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        text = client.get("/").text
        found = re.search(r'name="planner-session" content="([^"]+)"', text)
        assert found is not None
        self.headers = {"X-Planner-Session": found[1], "Origin": ADDRESS, "Sec-Fetch-Site": "same-origin"}

    def get(self, path: str) -> Any:
        return self.client.get(path, headers=self.headers)

    def post(self, path: str, data: object) -> Any:
        return self.client.post(path, json=data, headers=self.headers)

    def ask(self, question: object, **more: Any) -> str:
        answer = self.post("/api/questions", {"question": question, **more})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def answer(self, name: str, *, until: tuple[str, ...] = ("done", "failed")) -> dict[str, Any]:
        end_s = time.monotonic() + 120
        while time.monotonic() < end_s:
            found = self.get(f"/api/questions/{name}").json()
            if found["state"] in until:
                return dict(found)
            time.sleep(0.05)
        raise TimeoutError(found)

    def stop(self, name: str) -> None:
        assert self.client.delete(f"/api/questions/{name}", headers=self.headers).status_code == 200


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app_of(LIMITS, names=frozenset({"localhost", "127.0.0.1"})), base_url=ADDRESS) as found:
        yield found


@pytest.fixture
def page(client: TestClient) -> Page:
    return Page(client)


@pytest.fixture(scope="module")
def asked(client: TestClient) -> tuple[Page, str, dict[str, Any]]:
    """A page, the id of a question and its answer."""
    page = Page(client)
    name = page.ask(QUICK)
    return page, name, page.answer(name)


# --- Who may ask


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({"Host": "planner.evil.example:8000"}, "/"),
        ({"Host": "127.0.0.1.evil.example"}, "/"),
        ({"Host": "127.0.0.1:8000.evil.example"}, "/"),
        ({"Host": "192.168.0.7:8000"}, "/"),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, "/"),
        ({"Sec-Fetch-Site": "same-site"}, "/serve.js"),
        ({"Origin": "http://localhost:3000"}, "/api/questions"),
    ],
)
def test_another_page_of_the_browser_reads_nothing(client: TestClient, headers: dict[str, str], path: str) -> None:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 403
    assert "planner-session" not in answer.text


def test_a_link_from_anywhere_opens_the_page_which_nobody_can_frame(client: TestClient) -> None:
    answer = client.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"})
    assert answer.status_code == 200
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"X-Planner-Session": ""},
        {"X-Planner-Session": "chosen." + "0" * 64},
        {"X-Planner-Session": "caf\xe9".encode("latin-1")},
    ],
)
def test_nothing_is_asked_without_the_page_s_own_origin_and_session(page: Page, headers: Any) -> None:
    answer = page.client.post("/api/questions", json={"question": QUICK}, headers={**page.headers, **headers})
    assert answer.status_code == 403


def test_a_question_without_an_origin_is_refused(page: Page) -> None:
    del page.headers["Origin"]
    assert page.post("/api/questions", {"question": QUICK}).status_code == 403


def test_one_page_sees_nothing_of_another_s_questions(client: TestClient, asked: Any) -> None:
    (one, name, found), other = asked, Page(client)
    assert other.get("/api/questions").json() == {"questions": []}
    for answer in (
        other.get(f"/api/questions/{name}"),
        other.post(f"/api/questions/{name}/change", {"values": {"0": "fp16"}}),
        other.post("/api/comparisons", {"ids": [name, name]}),
        other.client.delete(f"/api/questions/{name}", headers=other.headers),
    ):
        assert answer.status_code == 404
    assert len(one.get("/api/questions").json()["questions"]) == 1
    assert client.get(found["report"][:-1] + "*").status_code == 404


# --- What is answered


def test_a_question_is_answered_with_its_report_its_spec_and_its_command(asked: Any, tmp_path: Any) -> None:
    page, _, found = asked
    assert found["state"] == "done"
    assert "all-reduce" in found["answer"] or "data parallel" in found["answer"]
    report = page.client.get(found["report"])
    assert "<h1>vgg16 on osf-testbed: the plan</h1>" in report.text
    assert len(report.content) < 200_000 < len(page.client.get(f"{found['report']}?whole").content)
    assert report.headers["content-security-policy"].startswith("sandbox allow-scripts; default-src 'none'")
    (tmp_path / "question.yaml").write_text(found["spec"])
    out = tmp_path / "plan.json"
    assert found["command"].split()[:3] == ["planner", "plan", "question.yaml"]
    assert run(["plan", str(tmp_path / "question.yaml"), "--out", str(out)]) == 0
    assert json.loads(out.read_text())["objective"]["value"] == pytest.approx(found["objective"]["value"])


def test_a_change_of_what_is_assumed_moves_the_answer_and_two_answers_are_compared(asked: Any) -> None:
    page, first, before = asked
    index = next(place for place, one in enumerate(before["assumptions"]) if one["place"] == ["dnn", "dtype"])
    answer = page.post(f"/api/questions/{first}/change", {"values": {str(index): "fp16"}})
    assert answer.status_code == 202
    second = answer.json()["id"]
    after = page.answer(second)
    assert after["objective"]["value"] < before["objective"]["value"]
    assert after["objective"]["words"] == dict(after["tiles"])["an epoch"]
    assert "expected error" in dict(after["minded"])
    assert after["assumptions"][0] | {"effect": ""} == before["assumptions"][index] | {
        **{"effect": "", "is_changed": True, "value": "fp16"}
    }
    assert "dtype: fp16" in after["spec"]
    compared = page.answer(page.post("/api/comparisons", {"ids": [first, second]}).json()["id"])
    assert "B is better" in compared["answer"]


def test_a_place_that_only_the_resolved_question_has_is_changed_there() -> None:
    from planner.serve.worker import _question

    asked = {"dnn": {"zoo": "vgg16"}, "cluster": {"preset": "x"}}
    resolved = {"dnn": {"zoo": "vgg16", "dtype": "fp32"}, "cluster": {"machines": [{"count": 2}]}}
    changes = [[["cluster", "machines", 0, "latency"], "5 us"]]
    found = _question({"question": asked, "resolved": resolved, "changes": changes})
    assert found == {**resolved, "cluster": {"machines": [{"count": 2, "latency": "5 us"}]}}
    assert _question({"question": asked, "resolved": resolved, "changes": [[["dnn", "dtype"], "fp16"]]}) == {
        **{"dnn": {"zoo": "vgg16", "dtype": "fp16"}, "cluster": {"preset": "x"}}
    }


def test_money_buys_an_answer_too(page: Page) -> None:
    question = {
        "dnn": {"zoo": "resnet50", "global_batch": 1024, "epochs": 2},
        "procure": {"deadline": "24 h", "providers": ["aws"], "devices": ["v100-sxm2-16g"], "terms": ["on-demand"]},
    }
    found = page.answer(page.ask(question))
    assert found["state"] == "done", found["error"]
    assert found["answer"].startswith("Rent")
    assert found["command"].startswith("planner procure question.yaml")


def test_limits_pins_and_several_trainings_are_asked_too(page: Page) -> None:
    limited = {**QUICK, "constraints": {"devices": {"at_most": 8}}, "fix": {"num_machines": 1}}
    found = page.answer(page.ask(limited))
    assert "devices: {at_most: 8}" in found["spec"]
    assert "8 devices" in found["answer"] or "1 x 8" in found["answer"], found["answer"]
    jobs = [
        {"name": name, "dnn": {"zoo": name, "global_batch": 512, "epochs": 1}, "runs_per_month": 1}
        for name in ("resnet50", "vgg16")
    ]
    found = page.answer(page.ask({"procure": {"jobs": jobs, "providers": ["aws"], "devices": ["v100-sxm2-16g"]}}))
    assert (found["state"], found["assumptions"]) == ("done", []), found["error"]
    assert found["answer"].startswith("Rent")


def test_faults_are_told_with_their_fields_as_the_command_line_tells_them(page: Page, capsys: Any) -> None:
    name = page.ask({"dnn": {"zoo": "vgg61"}, "cluster": {"preset": "osf-testbed"}})
    found = page.answer(name)
    assert page.get(f"/api/questions/{name}").status_code == 422
    assert [fault["field"] for fault in found["error"]["faults"]] == ["dnn.zoo"]
    assert run(["plan", "--dnn", "vgg61", "--cluster", "osf-testbed"]) == 2
    assert found["error"]["message"] in capsys.readouterr().err
    assert "Traceback" not in found["error"]["message"]


def test_a_question_without_an_answer_has_a_page_of_what_conflicts(page: Page) -> None:
    cluster = {"machines": [{"count": 1, "machine": "hgx-h100"}]}
    name = page.ask({"dnn": {"zoo": "llama3-70b", "global_batch": 64}, "cluster": cluster, "families": ["all_reduce"]})
    found = page.answer(name)
    assert found["title"] == "llama3-70b: no answer"
    assert "memory of h100-sxm" in page.client.get(found["report"]).text
    assert page.post("/api/comparisons", {"ids": [name, name]}).status_code == 404


# --- What may be asked


@pytest.mark.parametrize(
    ("question", "field"),
    [
        ({"dnn": {"file": "/etc/passwd"}, "cluster": {"preset": "osf-testbed"}}, "dnn.file"),
        ({"dnn": {"torch": "os:getcwd"}, "cluster": {"preset": "osf-testbed"}}, "dnn.torch"),
        ({"dnn": {"profile": "../x.csv"}, "cluster": {"preset": "osf-testbed"}}, "dnn.profile"),
        ({"dnn": {"zoo": "vgg16"}, "procure": {"prices": "/etc/passwd"}}, "procure.prices"),
        ({**QUICK, "calibration": "/etc/passwd"}, "calibration"),
        ({"dnn": {"zoo": ["vgg16"] * 51}, "cluster": {"preset": "osf-testbed"}}, "dnn.zoo"),
        ({"dnn": {"zoo": "x" * 201}, "cluster": {"preset": "osf-testbed"}}, "dnn.zoo"),
        ({"dnn": {"zoo": "vgg16"}, "cluster": {"machines": [{"count": {"a": 1}}]}}, "cluster.machines.0.count"),
        ({"dnn": {"zoo": "vgg16"}}, "cluster"),
        ({"dnn": {"zoo": "", "global_batch": 3}, "cluster": {"preset": "osf-testbed"}}, "dnn.zoo"),
        ({**QUICK, "procure": {"deadline": "1 h"}}, "cluster"),
        ({**QUICK, "fix": {"file": "/etc/passwd"}}, "fix.file"),
        ({**QUICK, "constraints": {"devices": {"a": 1}}}, "constraints.devices.a"),
        (
            {"dnn": {"zoo": "a", "dimensions": {"x": {"y": 1}}}, "cluster": {"preset": "osf-testbed"}},
            "dnn.dimensions.x",
        ),
        ({"procure": {"jobs": [{"name": "a", "dnn": {"upload": "x"}}]}}, "procure.jobs.0.dnn.upload"),
    ],
)
def test_a_form_names_no_file_and_no_code(question: object, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        checked_form({"question": question}, most_s=60)
    assert [fault.field for fault in caught.value.faults] == [field]


@pytest.mark.parametrize("sent", [None, [], {}, {"question": 1}, {"question": QUICK, "time_limit_s": 1e9}, {"question": QUICK, "time_limit_s": True}])  # fmt: skip
def test_what_is_no_form_is_refused(page: Page, sent: object) -> None:
    answer = page.post("/api/questions", sent)
    assert answer.status_code == 422
    assert answer.json()["error"]["faults"]


def test_bodies_that_are_no_json_or_too_long_are_refused(page: Page) -> None:
    for body in (b"{", b"\xff", b"[" * 60_000, b'"' + b"x" * 70_000 + b'"'):
        assert page.client.post("/api/questions", content=body, headers=page.headers).status_code == 422


def test_only_what_an_answer_assumed_is_changed() -> None:
    fields: list[dict[str, Any]] = [
        {"place": ["dnn", "dtype"], "like": "fp32"},
        {"place": None, "like": None},
        {"place": ["x"], "like": 4},
    ]
    assert checked_values({"values": {"0": "bf16", "2": "1,024"}}, fields) == {0: "bf16", 2: 1024}
    for values in ({"1": "x"}, {"3": "x"}, {"-1": "x"}, {"dnn.file": "x"}, {"0": {"file": "x"}}, {}, None):
        with pytest.raises(SpecError):
            checked_values({"values": values}, fields)


# --- Files


def test_an_uploaded_file_is_read_by_its_content_whatever_it_is_called(page: Page) -> None:
    headers = page.headers
    taken = page.client.post("/api/networks?name=../../etc/passwd", content=json.dumps(CONFIG), headers=headers)
    assert taken.status_code == 201
    assert taken.json()["name"] == "passwd"
    machines = {"machines": [{"count": 1, "machine": "hgx-h100"}]}
    question = {"dnn": {"upload": taken.json()["id"], "global_batch": 64}, "cluster": machines}
    found = page.answer(page.ask(question))
    assert found["state"] == "done", found["error"]
    assert "transformer:" in found["spec"]
    assert "uploaded" not in found["spec"].split("transformer:")[1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\x80\x04\x95pickle", "this file is no network that is known here."),
        (b"PK\x03\x04 a zip of weights", "this file is no network that is known here."),
        (b" \n", "this file is empty."),
        (b'{"no": "model"}', "model_type"),
        (b'{"model_type": "llama", "hidden_size": ', "line 1, dnn.huggingface: this is no JSON, or not all of it"),
    ],
)
def test_what_would_have_to_be_run_is_refused_and_so_is_what_is_broken(page: Page, body: bytes, words: str) -> None:
    taken = page.client.post("/api/networks?name=model.pt", content=body, headers=page.headers).json()
    name = page.ask({"dnn": {"upload": taken["id"]}, "cluster": {"preset": "osf-testbed"}})
    found = page.answer(name)
    (fault,) = found["error"]["faults"]
    assert fault["field"] == "dnn.upload"
    assert words in fault["problem"]


def test_what_is_wrong_in_a_file_is_told_where_it_was_chosen(page: Page) -> None:
    body = json.dumps({"hidden_size": 8, "model_type": "lfm2"}, indent=1)
    taken = page.client.post("/api/networks?name=config.json", content=body, headers=page.headers).json()
    found = page.answer(page.ask({"dnn": {"upload": taken["id"]}, "cluster": {"preset": "osf-testbed"}}))
    (fault,) = found["error"]["faults"]
    assert (fault["field"], fault["file"], fault["line"]) == ("dnn.upload", None, None)
    assert fault["problem"].startswith("line 3, model_type: 'lfm2' is not counted")
    assert "uploaded" not in found["error"]["message"]


def test_a_file_that_is_too_large_is_refused_and_none_is_another_s(client: TestClient) -> None:
    one, other = Page(client), Page(client)
    answer = client.post("/api/networks?name=a", content=b"x" * (2**20 + 1), headers=one.headers)
    assert answer.status_code == 422
    taken = client.post("/api/networks?name=a", content=b"x", headers=one.headers).json()
    asked = other.post("/api/questions", {"question": {"dnn": {"upload": taken["id"]}, "cluster": {"preset": "osf-testbed"}}})  # fmt: skip
    assert asked.status_code == 422


# --- Limits


def test_searches_wait_stop_and_are_killed_without_harm_to_others(client: TestClient) -> None:
    page = Page(client)
    names = [page.ask(SLOW, time_limit_s=20) for _ in range(3)]
    assert page.post("/api/questions", {"question": QUICK}).status_code == 429
    for name in names[:2]:
        page.answer(name, until=("searching",))
    assert page.answer(names[2], until=("waiting",))["place"] == 0
    searches = client.app.state.searches  # type: ignore[attr-defined]
    (session,) = (one for one in searches.sessions.values() if names[0] in one.searches)
    while session.searches[names[0]].process is None:
        time.sleep(0.01)
    os.kill(session.searches[names[0]].process.pid, signal.SIGKILL)
    killed = page.answer(names[0])
    assert killed["state"] == "failed"
    assert "killed" in killed["error"]["message"]
    page.stop(names[1])
    page.stop(names[1])
    if names[1] in session.searches:  # over before it was stopped again, it is forgotten
        assert page.answer(names[1])["state"] in ("done", "failed")
    page.stop(names[2])
    page.answer(names[2])
    assert page.answer(page.ask(QUICK))["state"] == "done"


def test_a_search_that_is_stopped_while_its_process_begins_holds_no_place() -> None:
    async def stopped() -> None:
        searches = Searches(LIMITS)
        task = {"kind": "plan", "question": SLOW, "time_limit_s": 20.0, "has_explanation": False, "changes": []}
        search = searches.ask(searches.session("a"), "long", {**task, "changed": []}, None)
        while search.state == "waiting":
            await asyncio.sleep(0)
        assert search.process is None and search.work is not None
        searches.stop(search)
        await asyncio.wait_for(search.work, timeout=10)
        assert search.is_over and search.process is None
        await searches.close()

    asyncio.run(stopped())


def test_a_file_whose_place_others_took_while_it_came_is_written_no_further() -> None:
    app = app_of(LIMITS, names=frozenset({"localhost"}))

    async def sent() -> tuple[int, list[int]]:
        transport = httpx2.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as page:
            found = re.search(r'name="planner-session" content="([^"]+)"', (await page.get("/")).text)
            assert found is not None
            page.headers.update({"X-Planner-Session": found[1], "Origin": ADDRESS})
            others: list[int] = []

            async def slow() -> AsyncIterator[bytes]:
                yield b"begun"
                for _ in range(LIMITS.num_uploads):
                    others.append((await page.post("/api/networks", content=b"whole")).status_code)
                yield b"more"

            return (await page.post("/api/networks", content=slow())).status_code, others

    assert asyncio.run(sent()) == (429, [201] * LIMITS.num_uploads)


def test_a_question_whose_file_is_gone_says_so(tmp_path: Any) -> None:
    task = {"folder": str(tmp_path / "gone"), "memory_limit_bytes": float("inf")}
    error = told_by_worker(task, lambda _line: None)["error"]
    assert (error["kind"], error["field"]) == ("input", "dnn.upload")


def test_memory_is_a_limit_of_each_search() -> None:
    tight = replace(LIMITS, memory_bytes=150e6)
    with TestClient(app_of(tight, names=frozenset({"localhost"})), base_url=ADDRESS) as client:
        page = Page(client)
        found = page.answer(page.ask(SLOW))
        assert (found["error"] or {"kind": "limit"})["kind"] == "limit"
        assert found["state"] == "failed" or found["title"].endswith("no answer yet")


def test_old_answers_are_forgotten_and_so_are_idle_sessions() -> None:
    few = replace(LIMITS, num_answers=1, num_sessions=2, idle_s=0.0)
    with TestClient(app_of(few, names=frozenset({"localhost"})), base_url=ADDRESS) as client:
        page = Page(client)
        first = page.ask({"dnn": {"zoo": "none"}, "cluster": {"preset": "none"}})
        page.answer(first)
        page.answer(page.ask({"dnn": {"zoo": "none"}, "cluster": {"preset": "none"}}))
        assert page.get(f"/api/questions/{first}").status_code == 404
        Page(client).get("/api/questions")
        assert page.get("/api/questions").json() == {"questions": []}


# --- The command


def test_the_command_says_what_to_install_before_anything_else(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("planner.cli.serve.find_spec", lambda name: None if name == "uvicorn" else find_spec(name))
    assert run(["serve", "--port", "1"]) == 2
    assert "pip install 'training-planner[serve]'" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_in_a_sentence(capsys: Any) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", "--no-open", "--port", str(port)]) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_a_host_that_no_dns_takes_is_told_in_a_sentence(capsys: Any) -> None:
    assert run(["serve", "--no-open", "--host", "a..b"]) == 2
    assert "nothing can listen at a..b" in capsys.readouterr().err


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
def test_a_connection_without_a_whole_request_loses_its_place(sent: bytes, monkeypatch: Any) -> None:
    import uvicorn
    from uvicorn.server import ServerState

    monkeypatch.setattr("planner.serve.app._IDLE_S", 0.1)

    async def answered() -> bytes:
        config = uvicorn.Config(app_of(LIMITS, names=frozenset({"localhost"})), http=_Protocol, ws="none")
        config.load()
        state = ServerState()
        made = lambda: _Protocol(config=config, server_state=state, app_state={})  # noqa: E731
        async with await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(sent)
            with suppress(ConnectionError):
                while part := await asyncio.wait_for(reader.read(2**20), 5):
                    found.append(part)
            writer.close()
        assert not state.connections
        return b"".join(found)

    found: list[bytes] = []
    assert asyncio.run(answered()).startswith(b"HTTP/1.1 200") == (b"\r\n\r\n" in sent)


def test_a_question_that_is_stopped_without_an_answer_is_told_so_and_not_to_allow_more_time() -> None:
    search = Search()
    with pytest.raises(StoppedError, match="it was stopped before any answer was found") as error:  # noqa: SIM117
        with search.interruptible():
            search.interrupt()
            raise NoAnswerError(TOO_SHORT)
    assert "--time-limit" not in str(error.value)
