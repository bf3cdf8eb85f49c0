"""Logs: the text of an attempt can be read while it runs and until its job is removed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from ingot.engines.postgres import PostgresStore
from ingot.jobs import AttemptNotFound, Definition, JobNotFound, JobStatus, LeaseLost
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.jobs.checks import LOG_CHARS_MAX, LOG_OFFSET_MAX
from ingot.jobs.model import JobLog
from ingot.jobs.ports import LogEntry
from ingot.kernel.errors import InvalidInput
from ingot.kernel.ids import new_id
from tests.conformance.snapshots import refuses_each
from tests.factories import Bench


async def test_appended_text_is_read_in_order(bench: Bench) -> None:
    claim = await bench.make_claim()
    assert await bench.jobs.append_log(claim.job.id, claim.fence, "one\n") == 4
    assert await bench.jobs.append_log(claim.job.id, claim.fence, "zw\u00f6lf\U0001f600\n") == 11
    log = await bench.jobs.log(bench.tenant, claim.job.id)
    assert log == JobLog(
        job_id=claim.job.id,
        attempt=1,
        fence=claim.fence,
        start=0,
        to=11,
        text="one\nzw\u00f6lf\U0001f600\n",
        live=True,
        attempts=1,
        status=JobStatus.RUNNING,
    )


@pytest.mark.parametrize("after", [0, 1, 3, 4, 5, 7, 8, 100])
async def test_a_log_can_be_read_from_any_offset(bench: Bench, after: int) -> None:
    claim = await bench.make_claim()
    for text in ("abc", "d", "efgh"):
        await bench.jobs.append_log(claim.job.id, claim.fence, text)
    log = await bench.jobs.log(bench.tenant, claim.job.id, after=after)
    assert (log.start, log.to, log.text) == (min(after, 8), 8, "abcdefgh"[after:])


async def test_a_job_that_was_never_claimed_has_an_empty_log(bench: Bench) -> None:
    job = await bench.make_job()
    log = await bench.jobs.log(bench.tenant, job.id)
    assert (log.attempt, log.fence, log.to, log.text, log.live) == (0, 0, 0, "", False)


@pytest.mark.parametrize(("offset", "text", "whole"), [(0, "abcdef", "abcdef"), (2, "cd", "abcd"), (3, "d", "abcd")])
async def test_only_text_after_the_end_of_the_log_is_appended(bench: Bench, offset: int, text: str, whole: str) -> None:
    claim = await bench.make_claim()
    await bench.jobs.append_log(claim.job.id, claim.fence, "abc")
    assert await bench.jobs.append_log(claim.job.id, claim.fence, text, offset=offset) == len(whole)
    assert (await bench.jobs.log(bench.tenant, claim.job.id)).text == whole


async def test_a_repeated_append_adds_nothing(bench: Bench) -> None:
    claim = await bench.make_claim()
    for text, offset in [("abc", 0), ("abc", 0), ("def", 3), ("def", 3), ("abc", 0)]:
        await bench.jobs.append_log(claim.job.id, claim.fence, text, offset=offset)
    assert (await bench.jobs.log(bench.tenant, claim.job.id)).text == "abcdef"


async def test_concurrent_repeats_add_nothing(bench: Bench) -> None:
    claim = await bench.make_claim()
    same = [bench.jobs.append_log(claim.job.id, claim.fence, "abc", offset=0) for _ in range(20)]
    assert await asyncio.gather(*same) == [3] * 20
    assert (await bench.jobs.log(bench.tenant, claim.job.id)).text == "abc"


async def test_concurrent_appends_are_all_kept(bench: Bench) -> None:
    claim = await bench.make_claim()
    await asyncio.gather(*(bench.jobs.append_log(claim.job.id, claim.fence, letter) for letter in "abcdefghij"))
    assert sorted((await bench.jobs.log(bench.tenant, claim.job.id)).text) == list("abcdefghij")


async def test_missing_text_is_a_gap_visible_in_start(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.append_log(claim.job.id, claim.fence, "abc", offset=0)
    await bench.jobs.append_log(claim.job.id, claim.fence, "xyz", offset=10)
    first = await bench.jobs.log(bench.tenant, claim.job.id)
    assert (first.start, first.to, first.text) == (0, 3, "abc")
    remaining = await bench.jobs.log(bench.tenant, claim.job.id, after=first.to)
    assert (remaining.start, remaining.to, remaining.text) == (10, 13, "xyz")


async def test_a_stale_fence_appends_nothing(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.append_log(claim.job.id, claim.fence, "first")
    for fence in (claim.fence + 1, claim.fence - 1):
        with pytest.raises(LeaseLost):
            await bench.jobs.append_log(claim.job.id, fence, "stale")
    await bench.jobs.complete(claim)
    with pytest.raises(LeaseLost):
        await bench.jobs.append_log(claim.job.id, claim.fence, "late")
    log = await bench.jobs.log(bench.tenant, claim.job.id)
    assert (log.text, log.live, log.status) == ("first", False, JobStatus.SUCCEEDED)


async def test_another_tenant_neither_writes_nor_reads(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.append_log(claim.job.id, claim.fence, "ours")
    other = (await bench.tenants.create("other")).id
    with pytest.raises(JobNotFound):
        await bench.jobs.append_log(claim.job.id, claim.fence, "theirs", tenant=other)
    with pytest.raises(JobNotFound):
        await bench.jobs.log(other, claim.job.id)
    assert (await bench.jobs.log(bench.tenant, claim.job.id)).text == "ours"


async def test_each_of_many_entries_is_accepted_or_refused_separately(bench: Bench) -> None:
    first, second = await bench.make_claim("a"), await bench.make_claim("b")
    entries = [
        LogEntry(job_id=first.job.id, fence=first.fence, text="one"),
        LogEntry(job_id=second.job.id, fence=second.fence + 1, text="stale"),
        LogEntry(job_id=second.job.id, fence=2**70, text="beyond 64 bits"),
        LogEntry(job_id=new_id(), fence=1, text="nobody"),
        LogEntry(job_id=first.job.id, fence=first.fence, text="two", offset=3),
        LogEntry(job_id=second.job.id, fence=second.fence, text="three"),
    ]
    answers = await bench.jobs.append_logs(entries)
    assert [getattr(answer, "code", answer) for answer in answers] == [
        3, "lease_lost", "lease_lost", "job_not_found", 6, 5,
    ]  # fmt: skip
    assert (await bench.jobs.log(bench.tenant, first.job.id)).text == "onetwo"
    assert (await bench.jobs.log(bench.tenant, second.job.id)).text == "three"


async def test_only_the_tail_of_a_long_log_is_kept(bench: Bench) -> None:
    claim = await bench.make_claim()
    whole = "".join(f"{line:07}\n" for line in range(20_000))
    for start in range(0, len(whole), 9_000):
        await bench.jobs.append_log(claim.job.id, claim.fence, whole[start : start + 9_000], offset=start)
    log = await bench.jobs.log(bench.tenant, claim.job.id, after=10)
    assert (log.start, log.to) == (len(whole) - LOG_TAIL_CHARS_MAX, len(whole))
    assert log.text == whole[-LOG_TAIL_CHARS_MAX:]
    chunks = await chunks_of(bench)
    assert LOG_TAIL_CHARS_MAX <= sum(chunks) < LOG_TAIL_CHARS_MAX + 9_000


async def test_each_attempt_has_its_own_log(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.append_log(claim.job.id, claim.fence, "first")
    await bench.jobs.release(claim)
    (again,) = await bench.jobs.claim("worker", ["noop"])
    await bench.jobs.append_log(again.job.id, again.fence, "second", offset=0)
    newest = await bench.jobs.log(bench.tenant, claim.job.id)
    assert (newest.attempt, newest.text, newest.live, newest.attempts) == (2, "second", True, 2)
    first = await bench.jobs.log(bench.tenant, claim.job.id, attempt=1)
    assert (first.fence, first.text, first.live, first.attempts) == (claim.fence, "first", False, 2)
    assert (await bench.jobs.log(bench.tenant, claim.job.id, attempt=0)).attempts == 2
    with pytest.raises(AttemptNotFound):
        await bench.jobs.log(bench.tenant, claim.job.id, attempt=3)


async def test_a_log_is_removed_with_its_job(bench: Bench) -> None:
    removed, kept = await bench.make_claim("removed"), await bench.make_claim("kept")
    for claim in (removed, kept):
        await bench.jobs.append_log(claim.job.id, claim.fence, "text")
        await bench.jobs.complete(claim)
    await bench.jobs.define(Definition(type="removed", retention_seconds=0))
    assert (await bench.jobs.collect()).removed == 1
    with pytest.raises(JobNotFound):
        await bench.jobs.log(bench.tenant, removed.job.id)
    assert await chunks_of(bench) == [4]


async def test_control_characters_are_kept_and_invalid_characters_are_replaced(bench: Bench) -> None:
    claim = await bench.make_claim()
    text = "\x1b[31mred\x1b[0m\r\n\t\x07\x7f"
    assert await bench.jobs.append_log(claim.job.id, claim.fence, text + "\x00\ud800") == len(text) + 2
    assert (await bench.jobs.log(bench.tenant, claim.job.id)).text == text + "\ufffd?"


async def test_an_empty_text_adds_nothing(bench: Bench) -> None:
    claim = await bench.make_claim()
    assert await bench.jobs.append_log(claim.job.id, claim.fence, "", offset=7) == 0
    assert await chunks_of(bench) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "x" * (LOG_CHARS_MAX + 1)},
        {"text": b"x"},
        {"offset": -1},
        {"offset": LOG_OFFSET_MAX + 1},
        {"offset": True},
    ],
)
async def test_invalid_entries_are_refused(bench: Bench, wrong: dict[str, object]) -> None:
    claim = await bench.make_claim()
    entry: dict[str, object] = {"text": "x", **wrong}
    with pytest.raises(InvalidInput):
        await bench.jobs.append_log(claim.job.id, claim.fence, **entry)  # type: ignore[arg-type]
    assert await chunks_of(bench) == []


async def test_invalid_reads_are_refused(bench: Bench) -> None:
    job = await bench.make_job()
    bad: list[dict[str, Any]] = [{"attempt": -1}, {"attempt": True}, {"attempt": "1"}, {"after": -1}, {"after": None}]
    read = partial(bench.jobs.log, bench.tenant, job.id)
    await refuses_each(bench, InvalidInput, {str(wrong): partial(read, **wrong) for wrong in bad})


async def test_text_after_the_maximum_offset_can_be_read(bench: Bench) -> None:
    claim = await bench.make_claim()
    await bench.jobs.append_log(claim.job.id, claim.fence, "abc", offset=LOG_OFFSET_MAX)
    await bench.jobs.append_log(claim.job.id, claim.fence, "def")
    log = await bench.jobs.log(bench.tenant, claim.job.id, after=LOG_OFFSET_MAX + 3)
    assert (log.start, log.text) == (LOG_OFFSET_MAX + 3, "def")


async def test_followers_of_a_log_are_woken(bench: Bench) -> None:
    claim, other = await bench.make_claim("a"), await bench.make_claim("b")
    with bench.jobs.log_followers.follow(claim.job.id) as news:
        await bench.jobs.append_log(other.job.id, other.fence, "text")
        assert not news.is_set()
        await bench.jobs.append_log(claim.job.id, claim.fence, "text")
        assert news.is_set()


async def chunks_of(bench: Bench) -> list[int]:
    """The sizes of all stored chunks of logs."""
    if isinstance(bench.store, PostgresStore):
        rows = await bench.store.database.read(bench.tenant, "SELECT size FROM ingot.logs")
        return [row["size"] for row in rows]
    return [size for (size,) in bench.store.connection.execute("SELECT size FROM logs")]
