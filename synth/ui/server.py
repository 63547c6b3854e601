"""The server of the page: its files, its requests, and searches."""

import json
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from synth.errors import SynthError
from synth.plan.explain.explanation import Explanation, explain
from synth.report.html.page import HEAD, STYLE, VIEWER_SCRIPTS, filled, part, viewer_html
from synth.solver.options import SolveOptions
from synth.ui.answers import Answers, FirstShown, one_line
from synth.ui.drawing import NotDrawn
from synth.ui.guard import RequestGuard
from synth.ui.jobs import Busy, CurveTrace, Job, Jobs, PlanSearch
from synth.ui.models import Models
from synth.ui.requests import (
    CurveRequest,
    DrawRequest,
    Given,
    OpenRequest,
    SaveRequest,
    ScheduleRequest,
    StartRequest,
    read_request,
)
from synth.ui.visitors import OverBudget, Visitors, counted_address
from synth.version import __version__

# Requests that are worked on at the same time; others wait for them.
_AT_ONCE = 2

# Seconds between two looks at a search, and after which a line is sent in any case.
_POLL_S, _ALIVE_S = 0.15, 10.0

# Seconds for what changes to a schedule would give.
_WHAT_IF_S = 10.0

# The visitor whose request is worked on.
_VISITOR: ContextVar[str] = ContextVar("VISITOR")

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class Service:
    """Answers what the page asks."""

    def __init__(
        self,
        models: Models,
        explained: Callable[[Explanation], str],
        opened: FirstShown | None = None,
    ) -> None:
        """Serve some models.

        Args:
            models: with the limits of requests and searches.
            explained: returns an explanation as text.
            opened: shown first; None: the page's own choice.
        """
        self._models, self._limits = models, models.limits
        self._answers = Answers(models, explained, opened)
        self._jobs, self._visitors = Jobs(self._limits), Visitors(self._limits)
        self._at_once = anyio.CapacityLimiter(_AT_ONCE)

    def application(self, token: str, hosts: set[str]) -> RequestGuard:
        """Return the application, which answers requests with a token to one of some hosts."""
        routes = [
            Route("/", self._page),
            Route("/static/{name}", self._file),
            Route("/start", self._start),
            self._posted("/draw", DrawRequest, self._answers.draw),
            self._posted("/explain", ScheduleRequest, self._answers.explain),
            self._posted("/export", SaveRequest, self._answers.export),
            self._posted("/open", OpenRequest, self._answers.open),
            self._posted("/solve", StartRequest, self._solve),
            self._posted("/curve", CurveRequest, self._curve),
            self._posted("/what-if", ScheduleRequest, self._what_if),
            Route("/jobs/{name}", self._progress),
            Route("/jobs/{name}/stop", self._stop, methods=["POST"]),
        ]
        handlers: Any = {HTTPException: _http_error, Exception: _bug}
        app = Starlette(routes=routes, exception_handlers=handlers)
        most = self._limits.most_body_bytes
        return RequestGuard(app, hosts=hosts, token=token, most_bytes=most)

    def close(self, wait_s: float = 3.0) -> None:
        """Stop what runs."""
        self._jobs.stop_all(wait_s)

    # The page

    async def _page(self, request: Request) -> Response:
        own = files(__package__) / "page"
        viewer = viewer_html(
            "synth ui",
            (own / "panel.html").read_text("utf-8"),
            (own / "outcome.html").read_text("utf-8"),
        )
        parts = {
            "version": __version__,
            "viewer": viewer,
            "scripts": "\n".join(
                f'<script src="static/{name}" defer></script>' for name in VIEWER_SCRIPTS
            ),
        }
        text = HEAD + filled((own / "index.html").read_text("utf-8"), parts)
        return Response(text, media_type="text/html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        kind = _TYPES.get(Path(name).suffix, "")
        if name in (STYLE, *VIEWER_SCRIPTS):
            return Response(part(name), media_type=kind)
        own = {each.name: each for each in (files(__package__) / "page").iterdir()}
        if not kind or name not in own:
            raise HTTPException(404, "there is no such file")
        return Response(own[name].read_bytes(), media_type=kind)

    async def _start(self, request: Request) -> Response:
        return await self._worked(request, lambda: self._answers.first(self._running()))

    # Searches

    def _solve(self, given: StartRequest) -> dict[str, Any]:
        given.setting.check_search(self._limits)
        profile = self._models.profile(given.setting)
        search = PlanSearch(given.setting, profile, self._limits, self._models)
        return self._started(search, "solve")

    def _curve(self, given: CurveRequest) -> dict[str, Any]:
        given.setting.check_search(self._limits)
        points = self._limits.points(given.points)
        profile = self._models.profile(given.setting)
        search = CurveTrace(given.setting, profile, self._limits, self._models, points)
        return self._started(search, "curve")

    def _what_if(self, given: ScheduleRequest) -> dict[str, Any]:
        drawn = self._answers.drawings.of(given.setting, given.source)
        is_own = given.source.plan is None
        profile = self._answers.drawings.profile(given.setting) if is_own else None
        limit_s = min(_WHAT_IF_S, self._limits.search_s)
        options = SolveOptions(time_limit_s=limit_s, workers=self._limits.workers)

        def search(job: Job) -> None:
            found = explain(drawn.plan, drawn.timeline, options, profile, job.stop)
            job.tell(lambda: {"text": self._answers.text(drawn, found)})

        return self._started(search, "what-if")

    def _started(self, search: Callable[[Job], None], kind: str) -> dict[str, Any]:
        visitor = _VISITOR.get()

        def charged(job: Job) -> None:
            with self._visitors.charged(visitor):
                search(job)

        return {"job": self._jobs.start(charged, kind).name}

    def _running(self) -> str | None:
        """Return the name of the search that runs, unless it may be another visitor's."""
        running = None if self._limits.is_public else self._jobs.running
        return None if running is None else running.name

    async def _progress(self, request: Request) -> Response:
        try:
            job = self._jobs.find(request.path_params["name"])
        except SynthError as error:
            return _refused(404, error)
        return StreamingResponse(self._events(job), media_type="text/event-stream")

    async def _events(self, job: Job) -> AsyncIterator[str]:
        """Send the progress of a search whenever there is some, until it has ended."""
        with job.followed():
            async for line in self._lines(job):
                yield line

    async def _lines(self, job: Job) -> AsyncIterator[str]:
        sent, sent_at = -1, 0.0
        while True:
            version, has_ended = job.version, job.ended_s is not None
            now = monotonic()
            if version != sent or has_ended:
                state = await anyio.to_thread.run_sync(job.snapshot)
                yield f"data: {json.dumps(state)}\n\n"
                sent, sent_at = version, now
            elif now - sent_at > _ALIVE_S:
                yield ": alive\n\n"
                sent_at = now
            if has_ended:
                return
            await anyio.sleep(_POLL_S)

    async def _stop(self, request: Request) -> Response:
        try:
            job = self._jobs.find(request.path_params["name"])
        except SynthError as error:
            return _refused(404, error)
        job.end_by_hand()
        return JSONResponse({"job": job.name})

    # Requests in general

    def _posted(
        self, path: str, record: type[Given], answer: Callable[[Given], dict[str, Any]]
    ) -> Route:
        """Return the route of a request whose body is a record."""

        async def endpoint(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(status_code=400)  # which nobody gets
            return await self._worked(request, lambda: answer(read_request(record, body)))

        return Route(path, endpoint, methods=["POST"])

    async def _worked(self, request: Request, work: Callable[[], dict[str, Any]]) -> Response:
        """Do some work in a thread, and count it; a user's mistake is one line."""
        visitor = counted_address(request.client.host) if request.client else ""
        _VISITOR.set(visitor)
        async with self._at_once:
            try:
                self._visitors.check(visitor)
                with self._visitors.charged(visitor):
                    answer = await anyio.to_thread.run_sync(lambda: json.dumps(work()))
            except OverBudget as error:
                return _refused(429, error)
            except Busy as error:
                job = None if self._limits.is_public else error.job
                return _refused(409, error, job=job)
            except NotDrawn as error:
                return _refused(400, error, choices=error.choices)
            except SynthError as error:
                return _refused(400, error)
        return Response(answer, media_type="application/json")


def _refused(status: int, error: SynthError, **more: Any) -> JSONResponse:
    return JSONResponse({"error": one_line(error), **more}, status)


def _http_error(request: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": error.detail}, error.status_code)


def _bug(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed; its terminal says why"}, 500)
