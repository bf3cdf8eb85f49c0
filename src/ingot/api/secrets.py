"""Routes of secrets: those that all records have, and the rotation of their key."""

from __future__ import annotations

from ingot.api.records import RecordsApi
from ingot.http.request import Request
from ingot.http.routes import Granted, Route, route_factory
from ingot.identity.secret_values import Rotated, Secret, Secrets
from ingot.identity.tenants import Tenants
from ingot.kernel.pages import PAGE_ROWS_MAX


class SecretsApi(RecordsApi[Secret]):
    """Routes of secrets."""

    def __init__(self, secrets: Secrets, tenants: Tenants) -> None:
        super().__init__(secrets)
        self._secrets = secrets
        self._tenants = tenants

    def routes(self) -> list[Route]:
        """Return the routes of this module."""
        route = route_factory("secrets")
        return [
            *super().routes(),
            route("POST", "/admin/secrets/rotate-key", self.rotate_key, Granted("secrets.write")),
        ]

    async def rotate_key(self, request: Request) -> Rotated:
        """Encrypt the secrets of all tenants again with the current secret key of the server."""
        request.require_operator("can rotate the key of all secrets")
        request.require("secrets.write")
        rotated = unreadable = 0
        cursor = None
        while True:
            page = await self._tenants.page(cursor=cursor, limit=PAGE_ROWS_MAX)
            for tenant in page.items:
                result = await self._secrets.rotate(tenant.id, act=request.act())
                rotated, unreadable = rotated + result.rotated, unreadable + result.unreadable
            if (cursor := page.next_cursor) is None:
                return Rotated(key_id=self._secrets.key_id, rotated=rotated, unreadable=unreadable)
