"""The routes of a server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ingot.http.metrics import Metrics
from ingot.http.routes import RouteTable
from ingot.wiring.api_server import build_routes
from tests.http.serving import Served


def route_table_of(served: Served) -> RouteTable:
    """All routes of a server on this store."""
    return build_routes(served.ingot, Metrics(CollectorRegistry()))
