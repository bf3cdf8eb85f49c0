"""Operations that all kinds of records have: list, get, put and delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

from ingot.client.asynchronous.http import AsyncHttp
from ingot.client.url_path import url_path
from ingot.kernel.pages import Page
from ingot.records.model import Record

B = TypeVar("B")


class AsyncRecords(Generic[B]):
    """The records of one kind, such as `client.secrets`."""

    def __init__(self, http: AsyncHttp, plural: str, body: type[B]) -> None:
        self._http = http
        self._plural = plural
        self._record_type: Any = Record[body]  # type: ignore[valid-type]
        self._page_type: Any = Page[self._record_type]  # type: ignore[name-defined]

    def list(self, *, prefix: str = "") -> AsyncIterator[Record[B]]:
        """Iterate over the records whose names begin with `prefix`, ordered by name."""
        return self._http.iterate_items(f"/{self._plural}", self._page_type, query={"prefix": prefix or None})

    async def get(self, name: str) -> Record[B]:
        """Return a record. Raises `RecordNotFound`."""
        return await self._http.request("GET", url_path(self._plural, name), self._record_type)

    async def put(self, name: str, *, if_version: int | None = None, **values: Any) -> Record[B]:
        """Create or replace a record and return it.

        With `if_version`, raise `RecordChanged` if the record has another version. 0 means that it must not exist.
        """
        query, path = {"if_version": if_version}, url_path(self._plural, name)
        return await self._http.request(
            "PUT", path, self._record_type, query=query, body=values, idempotent=if_version is None
        )

    async def delete(self, name: str, *, if_version: int | None = None) -> Record[B]:
        """Delete a record and return it as it was. Raises `RecordNotFound` or `RecordChanged`."""
        query = {"if_version": if_version}
        return await self._http.request("DELETE", url_path(self._plural, name), self._record_type, query=query)
