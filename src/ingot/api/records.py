"""The routes that all kinds of records have: list, get, put and delete."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from ingot.http.request import Request
from ingot.http.routes import PREFIX, Granted, Handler, Route, route_factory
from ingot.kernel.pages import Page
from ingot.records.model import Record
from ingot.records.service import Records
from ingot.wire.records import RecordQuery, RecordsQuery

B = TypeVar("B")


class RecordsApi(Generic[B]):
    """Routes of one kind of record.

    Reading needs a grant for `<plural>.read` on `<plural>/<name>`, and changing one for `<plural>.write`.
    """

    def __init__(self, records: Records[B]) -> None:
        self._records = records
        self._plural = records.kind.plural

    def routes(self) -> list[Route]:
        """Return the routes of this kind."""
        kind = self._records.kind
        record: Any = Record[kind.body_type]  # type: ignore[name-defined]
        types_of_one = {"request": Request, "name": str, "query": RecordQuery, "return": record}

        async def list_records(request: Request, query: RecordsQuery) -> Page[Record[B]]:
            return await self._records.page(
                request.tenant,
                prefix=query.prefix,
                cursor=query.cursor,
                limit=query.limit,
                is_visible=lambda name: request.caller.may(f"{self._plural}.read", self._resource(name)),
            )

        async def get_record(request: Request, name: str) -> Record[B]:
            request.require(f"{self._plural}.read", self._resource(name))
            return await self._records.get(request.tenant, name)

        async def put_record(request: Request, name: str, query: RecordQuery, body: Any) -> Record[B]:
            request.require(f"{self._plural}.write", self._resource(name))
            return await self._records.write(
                request.tenant, name, body, if_version=query.expected_version, act=request.act()
            )

        async def delete_record(request: Request, name: str, query: RecordQuery) -> Record[B]:
            request.require(f"{self._plural}.write", self._resource(name))
            return await self._records.delete(
                request.tenant, name, if_version=query.expected_version, act=request.act()
            )

        types_of_list = {"request": Request, "query": RecordsQuery, "return": Page[record]}
        return [
            self._route("GET", "", list_records, f"List {kind.plural}, ordered by name.", types_of_list),
            self._route(
                "GET",
                "/{name}",
                get_record,
                f"Return a {kind.name}.",
                {"request": Request, "name": str, "return": record},
            ),
            self._route(
                "PUT",
                "/{name}",
                put_record,
                f"Create or replace a {kind.name}.",
                {**types_of_one, "body": kind.request_type or kind.body_type},
            ),
            self._route(
                "DELETE", "/{name}", delete_record, f"Delete a {kind.name} and return it as it was.", types_of_one
            ),
        ]

    def _resource(self, name: str) -> str:
        return f"{self._plural}/{name}"

    def _route(self, method: str, path: str, handler: Handler, title: str, types: dict[str, Any]) -> Route:
        handler.__doc__, handler.__annotations__ = title, types
        needs = Granted(f"{self._plural}.{'read' if method == 'GET' else 'write'}")
        route = route_factory(self._plural, f"{PREFIX}/{self._plural}", example=self._records.kind.example)
        return route(method, path, handler, needs)
