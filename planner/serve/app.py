"""The page and what it asks, over HTTP. Only the page itself is answered, none of another site in the same browser.

- The Host header must be a name under which this server is meant to be reached: a name of others that was made to lead
  here (DNS rebinding) is refused.
- What changes anything needs an Origin equal to that Host, and a browser that says so in Sec-Fetch-Site.
- All questions and answers need the session's name, which stands in the page alone, in a header: another origin can
  neither read it nor send it. It is signed, so that nobody chooses one. There are no cookies.
- A report is reached by a key that only its page was told, and is shown as a document of no origin (CSP sandbox).
"""

import asyncio
import gzip
import hmac
import ipaddress
import json
import re
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import PurePath
from typing import Any

import uvicorn
from jinja2 import Environment, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from planner import data, zoo
from planner.answer.documents import error_document
from planner.answer.html import library, whole
from planner.errors import SpecError
from planner.letters import visible
from planner.serve.form import LIMITS, UPLOAD, checked_form, checked_values
from planner.serve.searches import BusyError, Limits, Search, Searches, Session, Upload
from planner.shipped import shipped_text

_MOST_BODY_BYTES = 64 * 2**10
_MOST_CONNECTIONS = 256
_IDLE_S = 30.0  # that a connection may last without a whole request
_HEADER = "x-planner-session"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-src 'self'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)


def app_of(limits: Limits, *, names: frozenset[str], has_addresses: bool = False) -> Starlette:
    """Return the application.

    Parameters
    ----------
    names
        Hosts that a request may name, IPv6 addresses in brackets.
    has_addresses
        Whether it may name any address, too: those are nobody's names, which could be made to lead here.
    """
    pages = _Pages(limits)

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        pages.searches = app.state.searches = Searches(limits)
        try:
            yield
        finally:
            await pages.searches.close()

    routes = [
        Route("/", pages.page),
        Route("/serve.css", pages.style),
        Route("/serve.js", pages.script),
        Route("/plots.js", pages.plots),
        Route("/reports/{key}", pages.report),
        Route("/api/questions", pages.answered(pages.every)),
        Route("/api/questions", pages.answered(pages.ask), methods=["POST"]),
        Route("/api/questions/{id}", pages.answered(pages.one)),
        Route("/api/questions/{id}", pages.answered(pages.stop), methods=["DELETE"]),
        Route("/api/questions/{id}/change", pages.answered(pages.change), methods=["POST"]),
        Route("/api/comparisons", pages.answered(pages.compare), methods=["POST"]),
        Route("/api/networks", pages.answered(pages.upload), methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=running)
    app.add_middleware(_Guard, names=names, has_addresses=has_addresses)
    return app


class _Guard:
    """Refuses requests of other sites, and says in every answer what a browser may do with it."""

    def __init__(self, app: ASGIApp, *, names: frozenset[str], has_addresses: bool) -> None:
        self._app, self._names, self._has_addresses = app, names, has_addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no web sockets here
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", _POLICY)
                headers["X-Content-Type-Options"] = "nosniff"
                headers["Referrer-Policy"] = "same-origin"
                headers["Cross-Origin-Opener-Policy"] = "same-origin"
                headers["Cross-Origin-Resource-Policy"] = "same-origin"
                headers["Cache-Control"] = "no-store"
            await send(message)

        if why := self._refusal(scope["method"], scope["path"], Headers(scope=scope)):
            await _failed(403, why)(scope, receive, sent)
        else:
            await self._app(scope, receive, sent)

    def _refusal(self, method: str, path: str, headers: Headers) -> str:
        """Return why a request is refused, empty where it is not."""
        host = headers.get("host", "").lower()
        name = re.sub(r":\d+$", "", host)  # what follows a colon and is no port is part of a name that is none
        if name not in self._names and not (self._has_addresses and _is_address(name)):
            return "This name is not one of this server's. Start it with --name to allow it."
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        is_change = method not in ("GET", "HEAD")
        if (origin is None and is_change) or (
            origin is not None and origin not in (f"http://{host}", f"https://{host}")
        ):
            return "A page of another site may not ask here."
        is_link = (
            path == "/" and headers.get("sec-fetch-dest") == "document"
        )  # from anywhere: it shows nobody's answers
        if site not in (None, "same-origin", *(() if is_change else ("none",))) and (is_change or not is_link):
            return "A page of another site may not ask here."
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _failed(status: int, message: str, **headers: str) -> JSONResponse:
    """Return an error as the page shows it."""
    return JSONResponse({"error": {"kind": "refused", "message": message, "faults": []}}, status, headers)


class _Pages:
    searches: Searches

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._secret = secrets.token_bytes(32)

    # --- The page

    def _signed(self, name: str) -> str:
        return f"{name}.{hmac.digest(self._secret, name.encode(), 'sha256').hex()}"

    async def page(self, request: Request) -> Response:
        """Return the page, with a session of its own."""
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        machines = sorted({str(row["name"]) for row in data.machine_rows()})
        text = environment.from_string(shipped_text("planner.serve", "page.html")).render(
            session=self._signed(secrets.token_urlsafe(32)),
            networks=zoo.names(),
            machines=machines,
            devices=[str(row["name"]) for row in data.device_rows()],
            presets=data.preset_names(),
            limits=LIMITS,
            seconds=f"{min(self._limits.most_s, 30):g}",
            most_mib=self._limits.upload_bytes // 2**20,
        )
        return HTMLResponse(text)

    async def style(self, request: Request) -> Response:
        """Return the style of reports, and what the page has beyond it."""
        return Response(
            f"{shipped_text('planner.answer', 'page.css')}\n{shipped_text('planner.serve', 'page.css')}",
            media_type="text/css",
        )

    async def script(self, request: Request) -> Response:
        """Return the page's script."""
        return Response(shipped_text("planner.serve", "page.js"), media_type="text/javascript")

    async def plots(self, request: Request) -> Response:
        """Return the library of the plots, which the page hands to each report."""
        return Response(await asyncio.to_thread(library), media_type="text/javascript")

    async def report(self, request: Request) -> Response:
        """Return a report; a whole one is a page by itself."""
        found = self.searches.report(request.path_params["key"])
        if found is None:
            return _failed(404, "This report is not kept any more.")
        text = await asyncio.to_thread(lambda: gzip.decompress(found).decode())
        if "whole" in request.query_params:
            text = await asyncio.to_thread(whole, text)
        return HTMLResponse(text, headers={"Content-Security-Policy": _REPORT_POLICY})

    # --- Questions

    def answered(
        self, answer: Callable[[Request, Session], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint of a session: who lacks its name sees nothing; errors are told as documents."""

        async def endpoint(request: Request) -> Response:
            token = request.headers.get(_HEADER, "")
            if not token.isascii() or not hmac.compare_digest(self._signed(token.partition(".")[0]), token):
                return _failed(403, "This page is of another run of planner serve. Reload it: what is filled in stays.")
            try:
                return await answer(request, self.searches.session(token))
            except SpecError as error:
                return JSONResponse({"error": error_document(error, kind="input")}, 422)
            except BusyError as error:
                return _failed(429, str(error), **{"Retry-After": "5"})
            except LookupError:
                return _failed(404, "There is no such answer here; the oldest are forgotten.")
            except ClientDisconnect:
                return _failed(400, "The page went away.")

        return endpoint

    async def every(self, request: Request, session: Session) -> Response:
        """Return all questions of the session."""
        return JSONResponse({"questions": [self._shown(one) for one in session.searches.values()]})

    async def one(self, request: Request, session: Session) -> Response:
        """Return one question, with its answer if there is one; what is wrong with it as 422."""
        search = session.searches[request.path_params["id"]]
        is_wrong = search.error is not None and search.error["kind"] == "input"
        return JSONResponse(self._shown(search), 422 if is_wrong else 200)

    async def stop(self, request: Request, session: Session) -> Response:
        """Stop a search; forget one that is over."""
        search = session.searches[request.path_params["id"]]
        if search.is_over:
            del session.searches[search.id]
        else:
            self.searches.stop(search)
        return JSONResponse(self._shown(search))

    async def ask(self, request: Request, session: Session) -> Response:
        """Begin to search for the answer to a form."""
        form = checked_form(await _json(request), most_s=self._limits.most_s)
        question, upload = dict(form.question), None
        dnn = question.get("dnn", {})
        name = str(dnn.get("zoo", "")) or f"{len(question.get('procure', {}).get('jobs', ()))} trainings"
        if UPLOAD in dnn:
            upload = self._upload(session, str(dnn[UPLOAD]))
            name = PurePath(upload.name).stem or "uploaded"
            question["dnn"] = {**dnn, "name": name}
        task: dict[str, Any] = {
            "kind": "procure" if form.is_purchase else "plan",
            "question": question,
            "time_limit_s": form.time_limit_s,
            "has_explanation": form.has_explanation,
            "changes": [],
            "changed": [],
        }
        title = f"{visible(name)[:80]}: {'what to buy or rent' if form.is_purchase else 'the plan'}"
        return self._begun(session, title, task, upload)

    async def change(self, request: Request, session: Session) -> Response:
        """Ask again with other values of what an answer assumed."""
        before = session.searches[request.path_params["id"]]
        fields = before.answer["assumptions"]
        values = checked_values(await _json(request), fields)
        kept = before.rest()
        changed = [
            {**one, "is_changed": True}
            for index, one in enumerate(fields)
            if one["place"] is not None and (index in values or one["is_changed"])
        ]
        task: dict[str, Any] = {
            **before.task,
            "question": kept["question"],
            "resolved": kept["resolved"],
            "changes": [
                [place, value]
                for index, value in values.items()
                for place in (fields[index]["place"], *fields[index]["also"])
            ],
            "changed": changed,
        }
        upload = None if before.upload_id is None else self._upload(session, before.upload_id)
        told = [f"{'.'.join(map(str, fields[index]['place']))}: {value}" for index, value in values.items()]
        return self._begun(session, before.title, task, upload, ", ".join([*filter(None, [before.note]), *told]))

    async def compare(self, request: Request, session: Session) -> Response:
        """Compare two answers of the session."""
        sent = await _json(request)
        ids = sent.get("ids") if isinstance(sent, dict) else None
        if not isinstance(ids, list) or len(ids) != 2 or not all(isinstance(one, str) for one in ids):
            raise SpecError.one("two answers are compared.", "Mark two.")
        plans = [session.searches[one].rest()["document"] for one in ids]
        task = {"kind": "compare", "plans": plans, "time_limit_s": self._limits.most_s}
        return self._begun(session, "The comparison", task, None)

    def _begun(
        self, session: Session, title: str, task: Mapping[str, Any], upload: Upload | None, note: str = ""
    ) -> Response:
        """Begin a search, and return where its answer will be."""
        return JSONResponse(self._shown(self.searches.ask(session, title, task, upload, note)), 202)

    def _upload(self, session: Session, name: str) -> Upload:
        """Return a file of the session.

        Raises
        ------
        SpecError
            If it is not there, or not any more.
        """
        if name not in session.uploads:
            raise SpecError.one("this file is not held here any more.", "Upload it again.", field=f"dnn.{UPLOAD}")
        return session.uploads[name]

    def _shown(self, search: Search) -> dict[str, Any]:
        """Return what the page shows of a question."""
        return {
            **search.answer,
            **{name: getattr(search, name) for name in ("id", "title", "note", "state", "progress", "error")},
            "seconds": search.seconds,
            "most_s": search.task["time_limit_s"],
            "place": self.searches.place(search) if search.state == "waiting" else 0,
            "report": f"/reports/{search.report_key}" if search.report_key else None,
        }

    async def upload(self, request: Request, session: Session) -> Response:
        """Take a file, as the body of the request; what it is, the search's process will say."""
        name = visible(PurePath(request.query_params.get("name", "")).name)[:80] or "a file"
        upload = self.searches.new_upload(session, name)
        try:
            with upload.path.open("wb") as file:
                async for chunk in request.stream():
                    upload.num_bytes += len(chunk)
                    if upload.num_bytes > self._limits.upload_bytes:
                        problem = f"this file is larger than {self._limits.upload_bytes // 2**20} MiB."
                        mend = "Save an ONNX model with its weights in a file of their own, and upload the graph alone."
                        raise SpecError.one(problem, mend, field=f"dnn.{UPLOAD}")
                    if upload.id not in session.uploads:  # its folder is gone: what is written now nobody would count
                        raise BusyError("Too many files are uploaded at once. Try again.")
                    if not self.searches.has_room:
                        raise BusyError("Too many files are held here. Try again later.")
                    file.write(chunk)
        except BaseException:
            self.searches.drop_upload(session, upload)
            raise
        return JSONResponse({"id": upload.id, "name": upload.name}, 201)


async def _json(request: Request) -> object:
    """Return the body of a request.

    Raises
    ------
    SpecError
        If it is no JSON, or too long.
    """
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BODY_BYTES:
            raise SpecError.one("this is too long.", "Ask less at once.")
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        raise SpecError.one("this is no JSON.", "Reload the page.") from None
    return found


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two, by what is installed
    """HTTP, of so many connections at once, and none without a request for long: each takes a file of the process."""

    _end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            transport.abort()
        self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._end is not None:
            self._end.cancel()

    def _wait(self) -> None:
        """End the connection in a while, unless it asks something by then."""
        if self._end is not None:
            self._end.cancel()
        self._end = self.loop.call_later(_IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        """End the connection where no request is being answered."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


# --- The server


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a host."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host.strip("[]")).is_loopback)


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises
    ------
    SpecError
        If none can.
    """
    with ExitStack() as undone:
        try:
            family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            found = undone.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if sys.platform != "win32":  # there it would let two servers listen
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
            found.listen()
        except (OSError, UnicodeError) as error:  # the second of a name that no DNS takes
            what = f"nothing can listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}."
            raise SpecError.of_option("--port", what, "Name another one.", value=str(port)) from None
        undone.pop_all()
    return found


def serve(host: str, port: int, *, names: tuple[str, ...], limits: Limits, is_opened: bool) -> None:
    """Serve until it is interrupted.

    Raises
    ------
    SpecError
        If nothing can listen there.
    PluginError
        If a plug-in cannot be loaded that adds a device: the page lists them all.
    """
    data.device_rows()
    bare = host.strip("[]").lower()
    listening = _listening(bare, port)
    shown = f"[{bare}]" if ":" in bare else bare
    own = {shown, "localhost", "127.0.0.1", "[::1]"} if is_loopback(bare) else {shown, socket.gethostname().lower()}
    is_everywhere = _is_address(bare) and ipaddress.ip_address(bare).is_unspecified
    address = f"http://{'localhost' if is_everywhere else shown}:{listening.getsockname()[1]}/"
    print(f"planner serves at {address}; end it with Ctrl-C", flush=True)
    app = app_of(limits, names=frozenset(own | {one.lower() for one in names}), has_addresses=not is_loopback(bare))
    said = {"log_level": "warning", "access_log": False, "server_header": False}
    config = uvicorn.Config(app, http=_Protocol, timeout_graceful_shutdown=3, ws="none", **said)  # type: ignore[arg-type]
    if is_opened:
        threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
    with listening, suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
