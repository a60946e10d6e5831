"""The routes of a silo's page: facts as JSON, the record of disclosures as a file, and two actions behind a token.

Tests: tests/silo/page/test_page.py.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from semisilo.common.page.app import guarded_page, table_file
from semisilo.common.page.requests import bearer_of, check_query, read_body, token_refused, token_shown, whole_number
from semisilo.common.page.responses import failure, json_answer, to_json
from semisilo.common.page.token import is_token
from semisilo.silo.page.service import ExportForm, SiloPage

__all__ = ["STATIC", "silo_page_app"]

STATIC = Path(__file__).parent / "static"
_MOST_TEXT = 200


def silo_page_app(page: SiloPage, *, listen_host: str, hosts: tuple[str, ...] = ()) -> ASGIApp:
    """The whole page, behind its guard."""
    routes = _Routes(page)
    return guarded_page([
        Route("/health", routes.health), Route("/api/silo", routes.here),
        Route("/api/studies", routes.studies), Route("/api/studies/{study}", routes.study),
        Route("/api/left", routes.left), Route("/api/disclosures", routes.disclosures),
        Route("/api/disclosures.csv", routes.export), Route("/api/disclosures.json", routes.export),
        Route("/api/asked", routes.asked), Route("/api/evaluations", routes.evaluations),
        Route("/api/policy", routes.policy), Route("/api/trust", routes.trust),
        Route("/api/session", routes.session, methods=["POST"]),
        Route("/api/actions/approve", routes.approve, methods=["POST"]),
        Route("/api/actions/decline", routes.decline, methods=["POST"]),
    ], STATIC, facts_at="/api/silo", page="silo's page", log="semisilo.silo",
        more_in="The terminal in which `silo page` runs says why.", listen_host=listen_host, hosts=hosts,
        unknown_host="Name it when starting: silo page --host NAME.")


class _Routes:
    def __init__(self, page: SiloPage) -> None:
        self._page = page

    # Facts ------------------------------------------------------------------------------------------------------------

    async def health(self, request: Request) -> Response:
        """For whoever asks whether the page answers."""
        return json_answer(to_json({"status": "ok"}))

    async def here(self, request: Request) -> Response:
        """GET /api/silo."""
        revealed = self._revealed(request)
        return json_answer(await self._page.facts(f"here {revealed}", lambda reader: reader.here(revealed=revealed)))

    async def studies(self, request: Request) -> Response:
        """GET /api/studies."""
        revealed = self._revealed(request)
        return json_answer(await self._page.facts(f"studies {revealed}",
                                                  lambda reader: reader.studies(revealed=revealed)))

    async def study(self, request: Request) -> Response:
        """GET /api/studies/NAME."""
        name = request.path_params["study"]
        return json_answer(await self._page.facts(f"study {name}", lambda reader: reader.study(name)))

    async def left(self, request: Request) -> Response:
        """GET /api/left."""
        return json_answer(await self._page.facts("left", lambda reader: reader.left()))

    async def disclosures(self, request: Request) -> Response:
        """GET /api/disclosures?study=&kind=&before=&limit=."""
        study, kind = _chosen(request, {"study", "kind", "before", "limit"})
        before = whole_number(request.query_params.get("before") or "0", "before")
        limit = whole_number(request.query_params.get("limit") or "50", "limit")
        return json_answer(await self._page.facts(
            f"disclosures {(study, kind, before, limit)}",
            lambda reader: reader.disclosures(study=study, kind=kind, before=before, limit=limit)))

    async def export(self, request: Request) -> Response:
        """GET /api/disclosures.csv and .json: the record as a file, of one study or kind where they are named."""
        study, kind = _chosen(request, {"study", "kind"})
        form: ExportForm = "csv" if request.url.path.endswith(".csv") else "json"
        return await table_file(self._page.export(form, study=study, kind=kind), form, name="disclosures")

    async def asked(self, request: Request) -> Response:
        """GET /api/asked?study=&steps=&offset=&limit=."""
        study, _ = _chosen(request, {"study", "steps", "offset", "limit"})
        steps = whole_number(request.query_params.get("steps") or "0", "steps") > 0
        offset = whole_number(request.query_params.get("offset") or "0", "offset")
        limit = whole_number(request.query_params.get("limit") or "50", "limit")
        revealed = self._revealed(request)
        return json_answer(await self._page.facts(
            f"asked {(study, steps, offset, limit, revealed)}",
            lambda reader: reader.asked(study=study or "", steps=steps, offset=offset, limit=limit,
                                        revealed=revealed)))

    async def evaluations(self, request: Request) -> Response:
        """GET /api/evaluations."""
        return json_answer(await self._page.facts("evaluations", lambda reader: reader.evaluations()))

    async def policy(self, request: Request) -> Response:
        """GET /api/policy."""
        revealed = self._revealed(request)
        return json_answer(await self._page.facts(f"policy {revealed}",
                                                  lambda reader: reader.policy(revealed=revealed)))

    async def trust(self, request: Request) -> Response:
        """GET /api/trust."""
        revealed = self._revealed(request)
        return json_answer(await self._page.facts(f"trust {revealed}",
                                                  lambda reader: reader.trust(revealed=revealed)))

    # Actions ----------------------------------------------------------------------------------------------------------

    async def session(self, request: Request) -> Response:
        """POST /api/session: whether a token is the right one. An empty one asks whether none is needed: it is."""
        body = await read_body(request, {"token": str})
        if isinstance(body, Response):
            return body
        if not body["token"]:
            return json_answer(to_json({"valid": False}))
        refused = self._refusal(request, body["token"])
        return json_answer(to_json({"valid": True})) if refused is None else refused

    async def approve(self, request: Request) -> Response:
        """POST /api/actions/approve: {"study", "digest"}."""
        return await self._decide(request, approved=True)

    async def decline(self, request: Request) -> Response:
        """POST /api/actions/decline: {"study", "digest"}."""
        return await self._decide(request, approved=False)

    async def _decide(self, request: Request, *, approved: bool) -> Response:
        refused = self._refusal(request, bearer_of(request))
        if refused is not None:
            return refused
        body = await read_body(request, {"study": str, "digest": str})
        if isinstance(body, Response):
            return body
        if not body["digest"]:
            return failure(400, "WRONG_FIELD", "The field 'digest' names the card that was looked at.")
        return json_answer(to_json(await self._page.decide(body["study"], body["digest"], approved=approved)))

    def _revealed(self, request: Request) -> bool:
        """Whether whoever asks has the token; a wrong one is asked as none, and counts as a wrong one."""
        given = bearer_of(request)
        return bool(given) and self._refusal(request, given) is None

    def _refusal(self, request: Request, given: str) -> Response | None:
        if is_token(given, self._page.token()):
            token_shown(request)
            return None
        return token_refused(request, self._page.gate, given, wrong="This is not the token of this page.",
                             missing="Approving and declining need the token of this page.",
                             remedy=f"Print it with: {self._page.token_command}")


def _chosen(request: Request, known: set[str]) -> tuple[str | None, str]:
    """(study, kind) of a query; None for all studies. Raises: HTTPException for what cannot be asked by."""
    check_query(request, known)
    query = request.query_params
    study = query.get("study")
    return None if study is None else study[:_MOST_TEXT], query.get("kind", "")[:_MOST_TEXT]
