"""The routes of the operator page: facts as JSON, a stream of changes, actions behind the operator's token.

Tests: tests/coordinator/page/test_server.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from semisilo.common.errors import UsageError
from semisilo.common.page.app import guarded_page, table_file
from semisilo.common.page.requests import (
    bearer_of,
    caller_of,
    check_query,
    read_body,
    token_refused,
    token_shown,
    whole_number,
)
from semisilo.common.page.responses import failure, json_answer, to_json
from semisilo.common.page.token import is_token
from semisilo.coordinator.federation import operate
from semisilo.coordinator.federation.audit_export import ExportFormat
from semisilo.coordinator.ledger.ledger import Ledger
from semisilo.coordinator.monitoring.audit_trail import MOST_EVENTS
from semisilo.coordinator.monitoring.results.comparison import MOST_COMPARED
from semisilo.coordinator.page.hand_over import FILES
from semisilo.coordinator.page.log_lines import LEVELS
from semisilo.coordinator.page.login_proxy import PAGE_TOKEN, LoginProxy
from semisilo.coordinator.page.service import PageService
from semisilo.coordinator.studies.drafts import StudyDraft, create_draft, study_choices

__all__ = ["STATIC", "page_app"]

STATIC = Path(__file__).parent / "static"
Handler = Callable[[Request], Awaitable[Response]]


def page_app(service: PageService, *, listen_host: str, hosts: tuple[str, ...] = (),
             proxy: LoginProxy | None = None) -> ASGIApp:
    """The whole page, behind its guard.

    Args:
        proxy: whose word for who acts is taken; None where nobody's is.
    """
    routes = _Routes(service, LoginProxy() if proxy is None else proxy)
    return guarded_page([
        Route("/health", routes.health), Route("/metrics", routes.metrics),
        Route("/api/federation", routes.federation), Route("/api/studies/{study}", routes.study),
        Route("/api/studies/{study}/rounds/{number}", routes.round),
        Route("/api/studies/{study}/silos/{silo}", routes.silo),
        Route("/api/studies/{study}/files/{name}", routes.file),
        Route("/api/logs", routes.logs), Route("/api/compare", routes.compare), Route("/api/choices", routes.choices),
        Route("/api/actions/queue", routes.queue, methods=["POST"]),
        Route("/api/events", routes.events), Route("/api/audit.csv", routes.audit),
        Route("/api/audit.json", routes.audit), Route("/api/stream", routes.stream),
        Route("/api/session", routes.session, methods=["POST"]),
        *(Route(f"/api/actions/{name}", routes.action(name), methods=["POST"]) for name in _ACTIONS),
    ], STATIC, facts_at="/api/federation", page="operator page", log="semisilo.coordinator",
        more_in="The coordinator's log says why.", listen_host=listen_host, hosts=hosts,
        unknown_host="Add the name to [page] hosts in federation.toml, and restart coordinator serve.")


class _Routes:
    def __init__(self, service: PageService, proxy: LoginProxy) -> None:
        self._service = service
        self._proxy = proxy

    # Facts ------------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """For whoever asks whether the page answers."""
        return json_answer(to_json({"status": "ok", "serving": self._service.live() is not None}))

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        text = await self._service.metrics()
        if text is None:
            return failure(404, "NOT_FOUND", "There is no federation here, so there are no metrics.")
        return Response(text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def federation(self, request: Request) -> Response:
        """GET /api/federation."""
        revision = await self._service.revision()
        return json_answer(await self._service.facts(
            "federation", lambda reader, live: reader.federation(live, revision=revision)))

    async def study(self, request: Request) -> Response:
        """GET /api/studies/NAME."""
        name = request.path_params["study"]
        return json_answer(await self._service.facts(f"study {name}", lambda reader, live: reader.study(name)))

    async def compare(self, request: Request) -> Response:
        """GET /api/compare?study=A&study=B."""
        check_query(request, {"study"})
        names = tuple(name[:200] for name in request.query_params.getlist("study")[:MOST_COMPARED + 1])
        return json_answer(await self._service.facts(f"compare {names}", lambda reader, live: reader.compare(names)))

    async def choices(self, request: Request) -> Response:
        """GET /api/choices: what a new study may be."""
        federation = self._service.federation
        if federation is None:
            return failure(404, "NOT_FOUND", "There is no federation here, so no study can be made.")
        return json_answer(await self._service.facts(
            "choices", lambda reader, live: study_choices(federation, reader.ledger)))

    async def round(self, request: Request) -> Response:
        """GET /api/studies/NAME/rounds/N."""
        name, number = request.path_params["study"], whole_number(request.path_params["number"], "round")
        return json_answer(await self._service.facts(f"round {number} {name}",
                                                     lambda reader, live: reader.round(name, number, live)))

    async def silo(self, request: Request) -> Response:
        """GET /api/studies/NAME/silos/SILO."""
        name, silo = request.path_params["study"], request.path_params["silo"]
        return json_answer(await self._service.facts(f"silo {silo} {name}",
                                                     lambda reader, live: reader.silo_of_study(name, silo)))

    async def events(self, request: Request) -> Response:
        """GET /api/events?study=&silo=&kind=&before=&limit=."""
        query = request.query_params
        check_query(request, {"study", "silo", "kind", "before", "limit"})
        study, silo, kind = (query.get(name, "")[:200] for name in ("study", "silo", "kind"))
        before = whole_number(query.get("before") or "0", "before")
        limit = min(MOST_EVENTS, whole_number(query.get("limit") or "100", "limit"))
        return json_answer(await self._service.facts(
            f"events {(study, silo, kind, before, limit)}",
            lambda reader, live: reader.events(study=study, silo=silo, kind=kind, before=before, limit=limit)))

    async def audit(self, request: Request) -> Response:
        """GET /api/audit.csv and /api/audit.json: the audit trail as a file, of one study where `study` names it."""
        check_query(request, {"study"})
        form: ExportFormat = "csv" if request.url.path.endswith(".csv") else "json"
        pieces = self._service.export(form, request.query_params.get("study", "")[:200])
        return await table_file(pieces, form, name="audit")

    async def logs(self, request: Request) -> Response:
        """GET /api/logs?level=&text=&before=&limit=: the coordinator's log, behind the operator's token, for it holds
        more than the page shows."""
        by = await self._operator(request, bearer_of(request))
        if isinstance(by, Response):
            return by
        if self._service.logs is None:
            return failure(404, "NOT_FOUND", "No coordinator runs behind this page, so there is no log.")
        query = request.query_params
        check_query(request, {"level", "text", "before", "limit"})
        level = query.get("level") or "info"
        if level not in LEVELS:
            raise HTTPException(400, f"'level' must be one of {', '.join(LEVELS)}")
        return json_answer(to_json(self._service.logs.find(
            level=level, text=query.get("text", "")[:200], before=whole_number(query.get("before") or "0", "before"),
            limit=whole_number(query.get("limit") or "200", "limit"))))

    async def file(self, request: Request) -> Response:
        """GET /api/studies/NAME/files/FILE: report, model card or model of a study that is over; the last two behind
        the operator's token."""
        study, what = request.path_params["study"], FILES.get(request.path_params["name"])
        if what is None:
            raise HTTPException(404, f"There is no such file; there are {', '.join(FILES)}")
        given = bearer_of(request)
        by = await self._operator(request, given) if what.needs_operator or given else None
        if isinstance(by, Response) and what.needs_operator:
            return by
        path = await self._service.hand_over(study, what, by_operator=isinstance(by, str))
        name = f"{study}-{request.path_params['name']}"
        return FileResponse(path, media_type=what.media_type, filename=name)

    async def stream(self, request: Request) -> Response:
        """GET /api/stream: server-sent events."""
        async def events() -> AsyncIterator[bytes]:
            with self._service.stream(caller_of(request)) as ended:
                async for event in self._service.changes(ended):
                    yield event
                if ended.is_set():
                    yield b"retry: 30000\n\n"

        return StreamingResponse(events(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    # Actions ----------------------------------------------------------------------------------------------------------

    async def session(self, request: Request) -> Response:
        """POST /api/session: whether a token is a right one, and whose. An empty one asks whether none is needed."""
        body = await read_body(request, {"token": str})
        if isinstance(body, Response):
            return body
        by = await self._operator(request, body["token"])
        if not isinstance(by, Response):
            return json_answer(to_json({"valid": True, "by": by}))
        asked = not body["token"] and by.status_code == HTTPStatus.UNAUTHORIZED
        return json_answer(to_json({"valid": False, "by": ""})) if asked else by

    def action(self, name: str) -> Handler:
        """POST /api/actions/NAME."""
        fields, act = _ACTIONS[name]

        async def handle(request: Request) -> Response:
            by = await self._operator(request, bearer_of(request))
            if isinstance(by, Response):
                return by
            body = await read_body(request, fields)
            if isinstance(body, Response):
                return body
            facts = await self._service.act(lambda ledger: act(self._service, ledger, body), by=by)
            return json_answer(to_json(facts))
        return handle

    async def queue(self, request: Request) -> Response:
        """POST /api/actions/queue: takes as long as all images of the study."""
        by = await self._operator(request, bearer_of(request))
        if isinstance(by, Response):
            return by
        body = await read_body(request, {"study": str})
        if isinstance(body, Response):
            return body
        config = await self._service.queue(body["study"], by=by)
        return json_answer(to_json({"study": body["study"], "state": "queued", "method": config.method.name,
                                    "rounds": config.study.rounds}))

    async def _operator(self, request: Request, given: str) -> str | Response:
        """Who acts, as the audit trail has it; or why the caller may not."""
        by = await self._judged(request, given)
        if isinstance(by, str):
            token_shown(request)
        return by

    async def _judged(self, request: Request, given: str) -> str | Response:
        if self._service.token is None:
            return failure(403, "READ_ONLY", "This page shows and does not act.",
                           "Use the page of coordinator serve, or the commands.")
        if (user := self._proxy.user(caller_of(request), request.headers)) is not None:
            return f"proxy:{user}"
        if is_token(given, self._service.token()):
            return PAGE_TOKEN
        if given and (name := await self._service.operator_of(given)) is not None:
            return f"operator:{name}"
        return token_refused(request, self._service.gate, given, wrong="This is not the operator's token.",
                             missing="Actions need the operator's token.",
                             remedy="Print it with: coordinator page --token.")


Action = Callable[[PageService, Ledger, Mapping[str, Any]], Any]


def _of_study(act: Callable[..., Any]) -> Action:
    def run(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
        row = act(ledger, body["study"], origin="page")
        return {"study": row.name, "state": str(row.state)}
    return run


def _extend(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    phase = operate.extend(ledger, body["seconds"], body["study"], origin="page")
    return {"study": phase.study, "round": phase.round, "phase": phase.name, "deadline_unix": phase.deadline_unix,
            "limit_unix": phase.limit_unix}


def _invite(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    if service.federation is None:
        raise UsageError("There is no federation to invite to.")
    return operate.invite(service.federation, ledger, body["silo"], life=body["life"], origin="page")


def _revoke(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    operate.revoke(ledger, body["silo"], origin="page")
    return {"silo": body["silo"], "state": "revoked"}


def _set_aside(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    operate.set_aside(ledger, body["silo"], reason=body["reason"], origin="page")
    return {"silo": body["silo"], "state": "set aside"}


def _take_back(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    operate.take_back(ledger, body["silo"], origin="page")
    return {"silo": body["silo"], "state": "joined"}


def _rollback(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    if service.federation is None or not body["to"].is_integer():
        raise UsageError("A study goes back to a round, which has a whole number.")
    study = ledger.study(body["study"]).name
    found = operate.rollback(ledger, study, int(body["to"]), reason=body["reason"], origin="page",
                             operator=ledger.by, study_folder=service.federation.studies / study)
    return {"study": study, "state": "queued", "round": found.to_round, "gone": [each.number for each in found.rounds]}


def _note(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    return {"study": operate.note(ledger, body["study"], body["text"], origin="page")}


def _new(service: PageService, ledger: Ledger, body: Mapping[str, Any]) -> Any:
    if service.federation is None:
        raise UsageError("There is no federation to make a study in.")
    numbers = {key: _whole(body[key], key) for key in ("rounds", "start_with", "seed")}
    draft = StudyDraft(name=body["name"], like=body["like"], scenario=body["scenario"], method=body["method"],
                       model=body["model"], **numbers)
    path = create_draft(service.federation, ledger, draft)
    return {"study": draft.name, "path": str(path), "images": not draft.like}


def _whole(value: float, what: str) -> int | None:
    """-1 is a number that was left out."""
    if not value.is_integer():
        raise UsageError(f"{what} must be a whole number.")
    return None if value == -1 else int(value)


_ACTIONS: Mapping[str, tuple[Mapping[str, Any], Action]] = {
    "pause": ({"study": (str, "")}, _of_study(operate.pause)),
    "resume": ({"study": (str, "")}, _of_study(operate.resume)),
    "stop": ({"study": (str, "")}, _of_study(operate.stop)),
    "extend": ({"study": (str, ""), "seconds": float}, _extend),
    "invite": ({"silo": str, "life": (str, "")}, _invite),
    "revoke": ({"silo": str}, _revoke),
    "set-aside": ({"silo": str, "reason": (str, "")}, _set_aside),
    "take-back": ({"silo": str}, _take_back),
    "rollback": ({"study": str, "to": float, "reason": (str, "")}, _rollback),
    "note": ({"study": str, "text": str}, _note),
    "new": ({"name": str, "like": (str, ""), "scenario": (str, ""), "method": (str, ""), "model": (str, ""),
             "rounds": (float, -1.0), "start_with": (float, -1.0), "seed": (float, -1.0)}, _new),
}
"""Action -> (fields of the request, what it does)."""
