"""Statements use an index: a history of any size does not slow them down."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import apsw.ext
import pytest

from benchmarks.queue.prefill import prefill
from ingot.engines.sqlite.sql import SQL
from ingot.engines.sqlite.store_folder import FILE_NAME
from ingot.jobs import JobStatus, Source
from ingot.kernel.clock import ManualClock, to_datetime
from tests.engines.sqlite.plans.every_statement import BATCH, TYPE, run_every_statement
from tests.engines.sqlite.plans.meter import Meter, metered
from tests.factories import open_bench

SMALL = {"finished": 20_000, "queued": 12_000}  # Enough to fill every page.
BIG = {"finished": 200_000, "queued": 100_000}  # Eight times as many or more.
MORE_STEPS_MAX = 1.1  # Steps count rows that are read, not the depth of an index.

RARE = 300
# This many jobs of each kind, evenly among the finished ones. The trigger is dropped, as it forbids these moves.
MAKE_RARE_JOBS = """
BEGIN;
DROP TRIGGER states_move;
UPDATE states SET type = 'rare' WHERE number % {every} = 0 AND number <= {finished};
UPDATE jobs SET source = 'schedule' WHERE number % {every} = 1 AND number <= {finished};
UPDATE states SET status = 'dead' WHERE number % {every} = 2 AND number <= {finished};
UPDATE states SET status = 'canceled' WHERE number % {every} = 3 AND number <= {finished};
INSERT INTO tags SELECT number, 'rare', tenant FROM states WHERE number % {every} = 0 AND number <= {finished};
INSERT INTO tags SELECT number, 'common', tenant FROM states WHERE number > {finished};
DELETE FROM counts;
INSERT INTO counts SELECT tenant, type, status, count(*) FROM states GROUP BY tenant, type, status;
INSERT INTO counts SELECT tenant, '', status, sum(jobs) FROM counts GROUP BY tenant, status;
COMMIT;
"""
STATES = [JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]

# Sources that may be scanned, by their name in the plan, and why they stay small.
SMALL_SOURCES = {
    "blob_totals": "one row",
    "claims": "the rows of the statement itself",
    "CONSTANT ROW": "the rows of the statement itself",
    "definitions": "one row per type that was defined",
    "object_store": "one row",
    "store": "one row",
    "tenants": "one row per tenant",
}
ALLOWED = {
    ("audit_entries", "a"): "as many rows as the limit, steps_by_page by an index",
    ("audit_entries_of_tenant", "a"): "as many rows as the limit, steps_by_page by an index",
    ("attempts_of_job", "a"): "the attempts of one job, steps_by_page by a key",
    ("blob_metrics", "blobs"): "as many damaged blobs as the limit",
    ("blob_metrics", "t"): "one row",
    ("has_objects", "trash"): "stops at the first row; runs once when the object store changed",
    ("blob_metrics", "tombstones"): "as many rows as the limit",
    ("blob_metrics", "trash"): "as many rows as the limit",
    ("blob_metrics", "uploads"): "as many rows as the limit",
    ("tombstoned_blobs", "d"): "as many rows as the limit, steps_by_page by an index",
    ("contents_to_scrub", "b"): "as many rows as the limit, steps_by_page by an index",
    ("queue_depths", "d"): "sums of counts, one row per tenant",
    ("queue_depths", "l"): "one row",
    ("queue_depths", "t"): "one row per tenant",
    ("count_workers", "w"): "all workers, of which those that are offline for long are removed",
    ("count_workers", "c"): "one row per credential",
    ("expired_leases", "s"): "as many rows as the limit, steps_by_page by an index",
    ("workers_of_type", "w"): "the registered workers, for an explanation of a job without a worker",
    ("retention_rules", "k"): "the tenants and types themselves",
    ("leases_of_worker", "states"): "the running jobs",
    ("live_lanes", "l"): "the lanes themselves",
    ("live_lanes", "states"): "stops at the first row: the head of the first lane",
    ("chosen_tenant", "o"): "the tenants of one person",
    ("invitations_of_user", "i"): "as many rows as the limit, read by indexes",
    ("members_by_id", "listed"): "the requested members",
    ("members_by_id", "s"): "the roles of the requested members",
    ("names_of_checkpoints", "c"): "the checkpoints of one job, steps_by_page by keys",
    ("oldest_ready", "c"): "as many counts as the limit",
    ("oldest_ready", "l"): "as many lanes as the limit",
    ("oldest_ready_by_tenant", "c"): "the counts, one row per tenant, type and status",
    ("oldest_ready_by_tenant", "l"): "as many lanes as the limit",
    ("oldest_ready_by_tenant", "o"): "the result, one row per tenant",
    ("page_of_trash", "o"): "as many rows as the limit",
    ("types_of_tenants", "c"): "one row per tenant",
    ("types_of_tenants", "counts"): "the counts, once when the store is opened",
    ("user_with_roles_by_id", "o"): "the roles of one person",
    ("user_with_roles_by_id", "r"): "their tenants",
    ("page_of_keys", "k"): "as many rows as the limit, steps_by_page by a key",
    ("page_of_members", "f"): "as many rows as the limit, steps_by_page by an index",
    ("page_of_members", "i"): "as many rows as the limit, steps_by_page by an index",
    ("page_of_members", "m"): "as many rows as the limit, steps_by_page by a key",
    ("page_of_members", "o"): "as many rows as the limit",
    ("page_of_users", "o"): "as many rows as the limit, steps_by_page by a key",
    ("page_of_users_by_email", "o"): "as many rows as the limit, steps_by_page by an index",
    ("running_under_limit", "states"): "the running jobs",
    ("awaited_parents", "p"): "the jobs with dependents",
    ("references_in_tenant", "r"): "as many rows as the limit, steps_by_page by indexes",
    ("running_jobs", "states"): "as many running jobs as the limit",
    ("save_states", "new"): "the rows of the statement itself",
    ("shorten_leases", "states"): "the running jobs",
    ("correct_running_attempts", "s"): "the running jobs",
    ("correct_workers_seen", "workers"): "one row per worker; runs once after the clock was corrected",
    ("uploads_of_other_servers", "u"): "as many rows as the limit, steps_by_page by an index",
    ("session_by_digest", "o"): "the roles of one person",
    ("session_by_digest", "r"): "their tenants",
    ("sessions_of_user", "s"): "as many rows as the limit, steps_by_page by an index",
    ("silent_workers", "w"): "as many rows as the limit, steps_by_page by an index",
    ("token_by_id", "o"): "the roles of one person",
    ("token_by_id", "r"): "their tenants",
    ("tokens_of_user", "t"): "as many rows as the limit, steps_by_page by an index",
    ("request_cancels", "states"): "the running jobs",
    ("uploads_of_tenant", "u"): "as many rows as the limit, steps_by_page by a key",
    ("uploads_to_sweep", "f"): "as many rows as the limit, steps_by_page by indexes",
    ("verifying_uploads", "u"): "as many rows as the limit, steps_by_page by an index",
    ("verifying_uploads", "uploads"): "as many uploads under verification as the limit",
    ("workers_of_tenant", "w"): "as many rows as the limit, steps_by_page by a key",
}


class Steps(NamedTuple):
    """The steps of a store."""

    of_pages: dict[str, int]
    of_statements: Meter


async def measure(folder: Path, *, finished: int, queued: int) -> Steps:
    """The steps of pages and of all statements of a store with this many jobs, including its opening."""
    clock = ManualClock()
    async with open_bench("sqlite", folder, clock) as bench:
        tenant = bench.tenant
    prefill(folder, finished=finished, queued=queued, tenant=tenant, type=TYPE)
    of_pages = await steps_of_pages(folder, clock, finished=finished)
    with metered() as meter:
        clock.advance(seconds=-3600)
        async with open_bench("sqlite", folder, clock):
            pass  # Opening the store corrects later times.
        clock.advance(seconds=3600)
        async with open_bench("sqlite", folder, clock) as bench:
            await run_every_statement(bench)
    shutil.rmtree(folder)
    return Steps(of_pages, meter)


def has_grown(small: int, big: int) -> bool:
    return big > small * MORE_STEPS_MAX


@pytest.mark.long
async def test_statements_and_pages_take_no_more_steps_with_a_long_history(tmp_path: Path) -> None:
    small = await measure(tmp_path / "small", **SMALL)
    big = await measure(tmp_path / "big", **BIG)
    check_statements(small.of_statements, big.of_statements)
    check_pages(small.of_pages, big.of_pages)


def check_statements(small: Meter, big: Meter) -> None:
    assert sorted(small.steps) == sorted(big.steps) == SQL.names()
    # A slow machine splits large calls, so a statement is slower only if its longest run and its total are.
    most = {name: (max(small.steps[name]), max(big.steps[name])) for name in SQL.names()}
    total = {name: (sum(small.steps[name]), sum(big.steps[name])) for name in SQL.names()}
    assert {name: most[name] for name in SQL.names() if has_grown(*most[name]) and has_grown(*total[name])} == {}
    assert big.automatic_indexes == set()


def check_pages(small: dict[str, int], big: dict[str, int]) -> None:
    # Finding the number for a time is a binary search over all numbers.
    allowed = {name: MORE_STEPS_MAX * steps + (500 if "time" in name else 0) for name, steps in small.items()}
    assert {name: (small[name], steps) for name, steps in big.items() if steps > allowed[name]} == {}


async def steps_of_pages(folder: Path, clock: ManualClock, *, finished: int) -> dict[str, int]:
    """The steps of the first and the next page of every filter in a store with this many finished jobs."""
    connection = apsw.Connection(str(folder / FILE_NAME))
    connection.execute(MAKE_RARE_JOBS.format(every=finished // RARE, finished=finished))
    middle = to_datetime(connection.execute("SELECT created_at FROM jobs WHERE number = ?", (finished // 2,)).get)
    connection.close()
    steps_by_page = {}
    with metered() as meter:
        async with open_bench("sqlite", folder, clock) as bench:
            for name, filters in pages(middle).items():
                cursor = None
                for position in ("first", "next"):
                    meter.steps.clear()
                    page = await bench.jobs.list(bench.tenant, cursor=cursor, limit=BATCH, **filters)
                    cursor = page.next_cursor
                    assert (len(page.items), cursor is None) == (BATCH, False), name
                    steps_by_page[f"{name}, {position}"] = sum(sum(steps) for steps in meter.steps.values())
    return steps_by_page


def pages(middle: datetime) -> dict[str, dict[str, Any]]:
    """Filters that match many jobs of a filled store."""
    alone: dict[str, dict[str, Any]] = {
        "type": {"type": TYPE},
        "rare type": {"type": "rare"},
        "tag": {"tag": "common"},
        "rare tag": {"tag": "rare"},
        "source": {"source": Source.MANUAL},
        "rare source": {"source": Source.SCHEDULE},
        "time": {"created_before": middle},
        **{status.value: {"status": status} for status in STATES},
    }
    together = {
        f"{one} and {other}": alone[one] | alone[other]
        for one, other in [
            ("type", "queued"),
            ("type", "succeeded"),
            ("type", "dead"),
            ("type", "tag"),
            ("rare tag", "succeeded"),
            ("tag", "queued"),
            ("time", "type"),
            ("time", "succeeded"),
            ("time", "dead"),
            ("time", "rare tag"),
            ("time", "source"),
        ]
    }
    return {"all": {}} | alone | together


@pytest.fixture(scope="module")
async def connection(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[apsw.Connection]:
    """A connection to the file of a new store. Tests do not change the file."""
    folder = tmp_path_factory.mktemp("plans") / "data"
    async with open_bench("sqlite", folder):
        pass
    connection = apsw.Connection(str(folder / FILE_NAME))
    yield connection
    connection.close()


def scans(connection: apsw.Connection, statement: str) -> set[str]:
    """The sources that the plan of a statement scans, other than its arguments and subqueries."""
    plan = apsw.ext.query_info(connection, statement, explain_query_plan=True).query_plan
    steps_by_page = {line.removeprefix("SCAN ") for line in _plan_lines(plan) if line.startswith("SCAN ")}
    names = {
        line.split(" USING ")[0] for line in steps_by_page if "VIRTUAL TABLE" not in line and not line.startswith("(")
    }
    return names - SMALL_SOURCES.keys()


def _plan_lines(plan: apsw.ext.QueryPlan | None) -> Iterator[str]:
    if plan is not None:
        yield plan.detail
        for part in plan.sub or ():
            yield from _plan_lines(part)


@pytest.mark.parametrize("name", SQL.names())
def test_no_statement_scans_a_table(connection: apsw.Connection, name: str) -> None:
    allowed = {table for statement, table in ALLOWED if statement == name}
    assert scans(connection, getattr(SQL, name)) == allowed


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM states WHERE worker_id = ?",
        "SELECT count(*) FROM states WHERE status = 'succeeded'",
        "SELECT s.id FROM states AS s JOIN tenants AS t ON t.number = s.tenant WHERE s.finished_at > ?",
        "UPDATE states SET due = 1 WHERE run_at < ?",
    ],
)
def test_a_statement_without_an_index_is_detected(connection: apsw.Connection, statement: str) -> None:
    assert scans(connection, statement) != set()


async def test_every_lane_with_ready_jobs_is_found_once(connection: apsw.Connection) -> None:
    chance = random.Random(7)
    connection.execute("BEGIN")
    for number in (2, 3):
        connection.execute(SQL.insert_tenants, (number, f"tenant-{number}", f"slug-{number}", 1, "UTC", "{}"))
    for number in range(1, 200):
        lane = (chance.choice("abc"), chance.randint(1, 3), chance.choice(["", "k1", "k2"]), chance.randint(0, 1))
        connection.execute(
            "INSERT INTO states (number, id, type, tenant, limit_key, due, status, priority, run_at, attempts,"
            " failures, crashes, max_attempts, fence, cancel_requested, told_at)"
            " VALUES (?1, 'id-' || ?1, ?2, ?3, ?4, ?5, 'queued', 3, 0, 0, 0, 0, 5, 0, 0, 0)",
            (number, *lane),
        )
    lanes = "SELECT DISTINCT type, t.id, limit_key FROM states JOIN tenants AS t ON t.number = tenant WHERE due = 1"
    live, expected = sorted(connection.execute(SQL.live_lanes)), sorted(connection.execute(lanes))
    connection.execute("ROLLBACK")
    assert live == expected
