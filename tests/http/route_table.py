"""The routes of a server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ingot.http.metrics import Metrics
from ingot.http.table import Table
from ingot.wiring.serving import routes_of
from tests.http.serving import Served


def table(served: Served) -> Table:
    """Every route that a server of this store has."""
    return routes_of(served.ingot, Metrics(CollectorRegistry()))
