"""Statements keep to their index: history of any size costs them nothing."""

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
from tests.engines.sqlite.plans.every_statement import BATCH, TYPE, run_errand
from tests.engines.sqlite.plans.meter import Meter, metered
from tests.factories import open_bench

SMALL = {"finished": 20_000, "queued": 12_000}  # Enough to fill every page.
BIG = {"finished": 200_000, "queued": 100_000}  # Eight times as many or more.
MORE_STEPS_MAX = 1.1  # A deeper tree costs no step; only rows that are looked at do.

RARE = 300
# Of each kind so many, evenly among the finished jobs. What nothing can move to is put there without the trigger.
RARE_ONES = """
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
COMMIT;
"""
STATES = [JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.DEAD, JobStatus.CANCELED]

# What may be read from end to end, by its name in the plan, and why that stays small.
SHORT = {
    "blob_totals": "one row",
    "claims": "the rows of the statement itself",
    "CONSTANT ROW": "the rows of the statement itself",
    "definitions": "one row per type that was defined",
    "object_store": "one row",
    "store": "one row",
    "tenants": "one row per tenant",
}
ALLOWED = {
    ("audit_entries", "a"): "as many as the limit says, found by the index before",
    ("audit_entries_of_tenant", "a"): "as many as the limit says, found by the index before",
    ("attempts_of_job", "a"): "the attempts of one job, found by its key before",
    ("blob_metrics", "blobs"): "as many as the limit says, of those that are damaged",
    ("blob_metrics", "t"): "one row",
    ("has_objects", "trash"): "up to the first, once, when the object store is another one",
    ("blob_metrics", "tombstones"): "as many as the limit says",
    ("blob_metrics", "trash"): "as many as the limit says",
    ("blob_metrics", "uploads"): "as many as the limit says",
    ("tombstoned_blobs", "d"): "as many as the limit says, found by the index before",
    ("contents_to_scrub", "b"): "as many as the limit says, found by the index before",
    ("queue_depths", "c"): "the counts, one row per tenant, type and status",
    ("queue_depths", "d"): "the sums of them, one row per tenant",
    ("queue_depths", "l"): "one row",
    ("expired_leases", "s"): "as many as the limit says, found by the index before",
    ("retention_rules", "k"): "the tenants and types themselves",
    ("leases_of_worker", "states"): "the jobs that run",
    ("live_lanes", "l"): "the lanes themselves",
    ("live_lanes", "states"): "stops at the first row: the head of the first lane",
    ("members_by_id", "listed"): "those who are asked for",
    ("members_by_id", "s"): "the roles of those who are asked for",
    ("names_of_checkpoints", "c"): "the names of the checkpoints of one job, found by the keys before",
    ("oldest_ready", "l"): "the lanes themselves",
    ("oldest_ready_by_tenant", "c"): "the counts, one row per tenant, type and status",
    ("oldest_ready_by_tenant", "l"): "the lanes themselves, as many as the limit says",
    ("oldest_ready_by_tenant", "o"): "what was found, one row per tenant",
    ("page_of_trash", "o"): "as many as the limit says",
    ("user_with_roles_by_id", "o"): "the roles of one person",
    ("user_with_roles_by_id", "r"): "their tenants",
    ("page_of_keys", "k"): "as many as the limit says, found by the key before",
    ("page_of_members", "f"): "as many as the limit says, found by the index before",
    ("page_of_members", "i"): "as many as the limit says, found by the index before",
    ("page_of_members", "m"): "as many as the limit says, found by the key before",
    ("page_of_members", "o"): "as many as the limit says",
    ("page_of_users", "o"): "as many as the limit says, found by the key before",
    ("page_of_users_by_email", "o"): "as many as the limit says, found by the index before",
    ("running_under_limit", "states"): "the jobs that run",
    ("awaited_parents", "p"): "the jobs that others wait for",
    ("references_in_tenant", "r"): "as many as the limit says, found by the indexes before",
    ("running_jobs", "states"): "as many as the limit says, of those that run",
    ("save_states", "new"): "the rows of the statement itself",
    ("session_by_digest", "o"): "the roles of one person",
    ("session_by_digest", "r"): "their tenants",
    ("sessions_of_user", "s"): "as many as the limit says, found by the index before",
    ("silent_workers", "w"): "as many as the limit says, found by the index before",
    ("token_by_id", "o"): "the roles of one person",
    ("token_by_id", "r"): "their tenants",
    ("tokens_of_user", "t"): "as many as the limit says, found by the index before",
    ("request_cancels", "states"): "the jobs that run",
    ("uploads_of_tenant", "u"): "as many as the limit says, found by the key before",
    ("uploads_to_sweep", "f"): "as many as the limit says, found by the indexes before",
    ("verifying_uploads", "u"): "as many as the limit says, found by the index before",
    ("verifying_uploads", "uploads"): "as many as the limit says, of those to be read back",
    ("workers_of_tenant", "w"): "as many as the limit says, found by the key before",
}


class Steps(NamedTuple):
    """The steps that a store took."""

    of_pages: dict[str, int]
    of_errand: Meter


async def measure(folder: Path, *, finished: int, queued: int) -> Steps:
    """The steps of pages and of everything asked of a store that holds so many jobs already, its opening included."""
    clock = ManualClock()
    async with open_bench("sqlite", folder, clock) as bench:
        tenant = bench.tenant
    prefill(folder, finished=finished, queued=queued, tenant=tenant, type=TYPE)
    of_pages = await steps_of_pages(folder, clock, finished=finished)
    with metered() as meter:
        async with open_bench("sqlite", folder, clock) as bench:
            await run_errand(bench)
    shutil.rmtree(folder)
    return Steps(of_pages, meter)


def has_grown(small: int, big: int) -> bool:
    return big > small * MORE_STEPS_MAX


@pytest.mark.long
async def test_a_long_history_costs_no_statement_and_no_page_of_any_filter_a_step(tmp_path: Path) -> None:
    small = await measure(tmp_path / "small", **SMALL)
    big = await measure(tmp_path / "big", **BIG)
    check_statements(small.of_errand, big.of_errand)
    check_pages(small.of_pages, big.of_pages)


def check_statements(small: Meter, big: Meter) -> None:
    assert sorted(small.steps) == sorted(big.steps) == SQL.names()
    # A slow machine does a large call in parts, so a statement has grown only if both its longest run and all have.
    most = {name: (max(small.steps[name]), max(big.steps[name])) for name in SQL.names()}
    total = {name: (sum(small.steps[name]), sum(big.steps[name])) for name in SQL.names()}
    assert {name: most[name] for name in SQL.names() if has_grown(*most[name]) and has_grown(*total[name])} == {}
    assert big.automatic_indexes == set()


def check_pages(small: dict[str, int], big: dict[str, int]) -> None:
    # Finding a number for a time takes as many looks as the largest number has digits.
    allowed = {name: MORE_STEPS_MAX * steps + (500 if "time" in name else 0) for name, steps in small.items()}
    assert {name: (small[name], steps) for name, steps in big.items() if steps > allowed[name]} == {}


async def steps_of_pages(folder: Path, clock: ManualClock, *, finished: int) -> dict[str, int]:
    """The steps of the first page of every filter, and of the next, in a store with so many finished jobs."""
    connection = apsw.Connection(str(folder / FILE_NAME))
    connection.execute(RARE_ONES.format(every=finished // RARE, finished=finished))
    middle = to_datetime(connection.execute("SELECT created_at FROM jobs WHERE number = ?", (finished // 2,)).get)
    connection.close()
    found = {}
    with metered() as meter:
        async with open_bench("sqlite", folder, clock) as bench:
            for name, filters in pages(middle).items():
                cursor = None
                for place in ("first", "next"):
                    meter.steps.clear()
                    page = await bench.jobs.list(bench.tenant, cursor=cursor, limit=BATCH, **filters)
                    cursor = page.next_cursor
                    assert (len(page.items), cursor is None) == (BATCH, False), name
                    found[f"{name}, {place}"] = sum(sum(steps) for steps in meter.steps.values())
    return found


def pages(middle: datetime) -> dict[str, dict[str, Any]]:
    """Filters that each have many jobs in a filled store."""
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
    """A connection to the file of a store that was just made. Tests leave the file as it is."""
    folder = tmp_path_factory.mktemp("plans") / "data"
    async with open_bench("sqlite", folder):
        pass
    connection = apsw.Connection(str(folder / FILE_NAME))
    yield connection
    connection.close()


def scans(connection: apsw.Connection, statement: str) -> set[str]:
    """What the plan of a statement reads from end to end, other than its own arguments and its own subqueries."""
    plan = apsw.ext.query_info(connection, statement, explain_query_plan=True).query_plan
    found = {line.removeprefix("SCAN ") for line in _lines(plan) if line.startswith("SCAN ")}
    names = {line.split(" USING ")[0] for line in found if "VIRTUAL TABLE" not in line and not line.startswith("(")}
    return names - SHORT.keys()


def _lines(plan: apsw.ext.QueryPlan | None) -> Iterator[str]:
    if plan is not None:
        yield plan.detail
        for part in plan.sub or ():
            yield from _lines(part)


@pytest.mark.parametrize("name", SQL.names())
def test_no_statement_reads_a_table_from_end_to_end(connection: apsw.Connection, name: str) -> None:
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
def test_a_statement_without_an_index_is_noticed(connection: apsw.Connection, statement: str) -> None:
    assert scans(connection, statement) != set()


async def test_every_lane_with_ready_work_is_found_once(connection: apsw.Connection) -> None:
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
