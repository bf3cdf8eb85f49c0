"""Measures a tenant while another tenant abuses the server, and prints the ratios."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import msgspec

from benchmarks.fair.abuse_kinds import FLOOR, KINDS
from benchmarks.fair.abuser import AbuseCounts, AbuseRequest
from benchmarks.fair.raw_client import CPU_SHARE_MAX
from benchmarks.fair.victim import Victim
from benchmarks.postgres.server import PostgresServer, as_role
from benchmarks.queue.report import markdown_table
from benchmarks.worker.ingot_server import IngotServer, serving
from ingot.engines.postgres.connection import SERVER_ROLE

RATIO_MAX: Final = 3.0
WINDOW_SECONDS: Final = 2.5
BEGIN_SECONDS: Final = 0.7  # Before the window, so that the abuse is under way.
REST_SECONDS: Final = 0.5
PREPARE_SECONDS_MAX: Final = 90
# The limits of a server without settings. The other benchmarks switch them off.
DEFAULT_RATES: Final = {"INGOT_RATE_READ": "1000", "INGOT_RATE_WRITE": "2000", "INGOT_RATE_WAIT": "1000"}


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one kind: the victim's milliseconds without and with the abuse, and what became of the abuse."""

    quiet: list[float]
    abused: list[float]
    counts: AbuseCounts
    server_share: float
    failures: int

    @property
    def ratio(self) -> float:
        return percentile(self.abused, 0.99) / percentile(self.quiet, 0.99)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


@contextmanager
def running_server(engine: str, postgres: PostgresServer, folder: Path) -> Iterator[IngotServer]:
    """Run `ingot serve` on a new store, with the limits that it has without settings."""
    with ExitStack() as stack:
        server_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        urls = {}
        if engine == "postgres":
            url = stack.enter_context(postgres.database())
            urls = {"owner_url": url, "server_url": as_role(url, SERVER_ROLE)}
        yield stack.enter_context(serving(server_folder, more=DEFAULT_RATES, **urls))


def create_tenant(server: IngotServer, slug: str) -> str:
    """Create a tenant, and return a token of it."""
    post(server, "/admin/tenants", {"slug": slug})
    created = post(server, "/admin/tokens", {"description": slug, "grants": [{"action": "*"}]}, slug)
    return str(created["token"])


def post(server: IngotServer, path: str, body: Any, tenant: str | None = None) -> Any:
    headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    if tenant is not None:
        headers["ingot-tenant"] = tenant
    with urlopen(Request(f"{server.url}/api/v1{path}", json.dumps(body).encode(), headers)) as response:
        return json.loads(response.read())


def measure_window(server: IngotServer, victim: Victim, request: AbuseRequest) -> Window:
    """Measure the victim without the abuse, and then with it."""
    command = [sys.executable, "-m", "benchmarks.fair.abuser", msgspec.json.encode(request).decode()]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        failures = victim.failures
        if process.stdout.readline() != "ready\n":
            sys.exit(f"benchmark: {request.kind} could not be prepared")
        time.sleep(REST_SECONDS)
        quiet = victim.measure(WINDOW_SECONDS)
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(BEGIN_SECONDS)
        cpu, began = server.cpu_seconds(), time.monotonic()
        abused = victim.measure(WINDOW_SECONDS)
        share = (server.cpu_seconds() - cpu) / (time.monotonic() - began)
        output, _ = process.communicate(timeout=PREPARE_SECONDS_MAX)
    finally:
        with suppress(OSError):
            process.kill()
        process.wait()
    counts = msgspec.json.decode(output, type=AbuseCounts)
    return Window(quiet=quiet, abused=abused, counts=counts, server_share=share, failures=victim.failures - failures)


def measure_engine(
    engine: str, postgres: PostgresServer, folder: Path, rounds: int, kinds: Sequence[str]
) -> dict[str, list[Window]]:
    """Measure each kind of abuse in some rounds, on one server for each round."""
    windows: dict[str, list[Window]] = {kind: [] for kind in kinds}
    for number in range(1, rounds + 1):
        with running_server(engine, postgres, folder) as server:
            port = int(server.url.rpartition(":")[2])
            victim = Victim(port, create_tenant(server, "victim"))
            victim.measure(1.0)  # Warm up.
            for kind in kinds:
                token = create_tenant(server, f"abuser-{kinds.index(kind)}")
                window = measure_window(server, victim, AbuseRequest(kind=kind, port=port, token=token))
                windows[kind].append(window)
                p99 = [f"{percentile(latencies, 0.99):.1f} ms" for latencies in (window.quiet, window.abused)]
                statuses = ", ".join(f"{count} × {status}" for status, count in sorted(window.counts.statuses.items()))
                print(
                    f"  {engine}, round {number}, {kind}: p99 {p99[0]} quiet, {p99[1]} under abuse; {statuses}",
                    flush=True,
                )
            victim.close()
    return windows


def abuse_table(engine: str, windows: dict[str, list[Window]]) -> tuple[list[str], list[str]]:
    """Return the medians of each kind on one engine, and which goals are met."""
    head = [
        "abuse by another tenant",
        "quiet p50",
        "p99 ms",
        "abused p50",
        "p99 ms",
        "p99 ratio",
        f"goal {RATIO_MAX:g} ×",
    ]
    head += ["accepted/s", "refused/s", "held open", "abuser's CPU", "server's CPU"]
    rows = [head]
    goals = []
    for kind, rounds in windows.items():
        ratio = statistics.median(window.ratio for window in rounds)
        is_met = ratio <= RATIO_MAX
        figures = [
            statistics.median(percentile(getattr(window, when), share) for window in rounds)
            for when in ("quiet", "abused")
            for share in (0.5, 0.99)
        ]
        seconds = WINDOW_SECONDS + BEGIN_SECONDS
        counts = [window.counts for window in rounds]
        rows.append([
            kind, *(f"{figure:.1f}" for figure in figures), f"{ratio:.1f} ×",
            "–" if kind == FLOOR else "met" if is_met else "NOT MET",
            f"{statistics.median(count.accepted for count in counts) / seconds:,.0f}",
            f"{statistics.median(count.refused for count in counts) / seconds:,.0f}",
            f"{statistics.median(count.held for count in counts):,.0f}",
            f"{statistics.median(count.cpu_share for count in counts):.0%}",
            f"{statistics.median(window.server_share for window in rounds):.0%}",
        ])  # fmt: skip
        if kind != FLOOR:
            goals.append(f"- {'met' if is_met else 'NOT MET'}: {engine}, {kind}: p99 of another tenant at most "
                         f"{RATIO_MAX:g} × its quiet p99; measured {ratio:.1f} ×")  # fmt: skip
        if failed := sum(window.failures for window in rounds):
            goals.append(f"- NOT MET: {engine}, {kind}: no request of another tenant fails; {failed} failed")
    return markdown_table(rows, text_columns=(0, 6)), goals


def about(rounds: int) -> str:
    """Describe the measurement."""
    return (
        f"Medians of {rounds} rounds of {WINDOW_SECONDS:g} s, each beside a quiet window directly before it. The "
        "measured tenant sends a mix of POST /jobs, GET /jobs/{id}, claim and settle, and small PUT and GET at a "
        f"steady pace. The abuser is one process that uses at most {CPU_SHARE_MAX:.0%} of a core. The server has its "
        "default limits. The floor is a tenant that abuses nothing: what it costs to share the cores."
    )


def measure_abuse(
    engines: Sequence[str], postgres: PostgresServer, folder: Path, rounds: int, kinds: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Measure all engines. Return the lines of the report, and which goals are met."""
    lines, goals = ["", "### One tenant that abuses the server", "", about(rounds)], []
    for engine in engines:
        rows, met = abuse_table(engine, measure_engine(engine, postgres, folder, rounds, kinds or tuple(KINDS)))
        lines += ["", f"#### {engine}", "", *rows]
        goals += met
    return lines, goals
