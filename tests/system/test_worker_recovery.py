"""What happens to jobs when workers and servers are killed, stopped, and told to go, as processes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from ingot.jobs.model import AttemptOutcome, JobStatus
from tests.system.deployment import Crew, all_of, crew, running
from tests.waiting import until

pytestmark = pytest.mark.long


def test_another_worker_runs_the_job_of_a_killed_one_and_a_crash_is_counted(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=3) as one:
        first = one.work()
        one.online(first)
        job = running(one.client.submit("wait"))
        first.kill()
        second = one.work()
        job.wait("60s")
        assert (job.result, job.data.crashes, job.data.failures) == (2, 1, 0)
        assert [attempt.outcome for attempt in job.attempts()] == [AttemptOutcome.LOST, AttemptOutcome.SUCCEEDED]
        until(lambda: one.workers() == {first.pid: "offline", second.pid: "online"}, why="who is there")
        assert Counter(event["data"]["status"] for event in one.events("worker.")) == {"online": 2, "offline": 1}


def test_a_silent_worker_is_offline_until_it_resumes(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=1) as one:
        worker = one.work()
        one.online(worker)
        for times in (1, 2):
            worker.tell(signal.SIGSTOP)
            until(lambda: one.workers() == {worker.pid: "offline"}, why="it is taken for gone")
            worker.tell(signal.SIGCONT)
            until(lambda: one.workers() == {worker.pid: "online"}, why="it is back")
            told = [event["data"]["status"] for event in one.events("worker.")]
            assert told == ["online", *["offline", "online"] * (len(told) // 2)], "they take turns"
            assert len(told) >= 1 + 2 * times  # On a machine that stalls it is taken for gone more often.
        assert one.client.submit("tick", {"place": one.place()}).wait("60s").result["pid"] == worker.pid


def test_a_worker_that_drains_releases_unfinished_jobs_and_exits(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        worker = one.work("--drain-seconds", "4")  # What ends has to end by then, and the other one is waited for.
        one.online(worker)
        waiting, ending = (
            running(one.client.submit("wait")),
            running(one.client.submit("tick", {"seconds": 0.3, "place": one.place()})),
        )
        worker.tell(signal.SIGTERM)
        assert worker.wait() == 0
        assert one.workers() == {}
        assert ending.refresh().status is JobStatus.SUCCEEDED
        waiting.refresh()
        known = (waiting.status, waiting.data.attempts, waiting.data.crashes, waiting.data.failures)
        assert known == (JobStatus.QUEUED, 1, 0, 0)


def test_a_worker_exits_although_a_handler_does_not_stop(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        worker = one.work("--drain-seconds", "0")
        one.online(worker)
        job = running(one.client.submit("deaf", {"seconds": 600, "place": one.place()}))
        worker.tell(signal.SIGTERM)
        assert worker.wait(60) == 0
        assert "handlers_left_behind" in worker.said()
        assert (job.refresh().status, job.data.crashes) == (JobStatus.QUEUED, 0)


def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_others_can_be_canceled(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=3) as one:
        one.online(one.work())
        held = [running(one.client.submit("wait", {"place": one.place()})) for _ in range(2)]
        polite = running(one.client.submit("polite"))
        rude = running(one.client.submit("rude", {"seconds": 8, "place": one.place()}))
        one.online(one.work())  # It would get what the other loses.
        for job in (*held, polite):
            job.cancel()
        assert rude.wait("60s").result == 1
        all_of([*held, polite])
        assert [job.status for job in (*held, polite)] == [JobStatus.CANCELED] * 3
        noted = [words[0] for words in one.noted()]
        assert noted == ["blocks", "stopped", "stopped", "blocked"], "a cancel does not wait for the loop"
        assert (rude.data.attempts, rude.data.crashes) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_of_the_server_loses_and_repeats_no_job(tmp_path: Path, number: signal.Signals) -> None:
    with crew(tmp_path) as one:
        workers = [one.work(), one.work()]
        one.online(*workers)
        jobs = one.client.submit_many("tick", [{"seconds": 0.01, "place": one.place()}] * 1000)
        for at in (100, 400, 700):
            one.ran(at)
            one.server.tell(number)
            one.server.wait()
            one.serve()
        _all_done_once(one, [job.id for job in jobs])


def _all_done_once(one: Crew, ids: list[str]) -> None:
    """Every job succeeded, once; what ran twice is known as that."""

    def is_done() -> bool:
        counts = one.client.summary().counts
        return counts[JobStatus.SUCCEEDED] == len(ids) or counts[JobStatus.DEAD] > 0

    until(is_done, seconds=90, why="all is done")
    done = {job.id: job for job in one.client.jobs(status="succeeded")}
    assert set(done) == set(ids)
    ran = Counter(id for id, _ in one.noted())
    assert set(ran) == set(ids)
    assert all(ran[id] <= job.data.attempts for id, job in done.items())
    completed = Counter(event["data"]["id"] for event in one.events("job.completed"))
    assert completed == dict.fromkeys(ids, 1)


def test_a_job_that_kills_its_worker_is_dead_after_its_crash_cap(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=1) as one:
        workers = [one.work(), one.work()]
        one.online(*workers)
        poison = one.client.submit("poison", {"place": one.place("poison")})
        others = one.client.submit_many("tick", [{"seconds": 0.2, "place": one.place()}] * 60)
        restarts = 0

        def is_dead() -> bool:
            nonlocal restarts
            for place, worker in enumerate(workers):
                if not worker.runs:
                    workers[place], restarts = one.work(), restarts + 1
            return poison.refresh().finished

        until(is_dead, seconds=90, why="it is dead")
        for job in others:
            job.wait("60s")
        assert (poison.status, poison.data.crashes, poison.data.attempts) == (JobStatus.DEAD, 3, 3)
        assert [words[1] for words in one.noted("poison")] == ["1", "2", "3"]
        assert restarts == 3 - sum(not worker.runs for worker in workers)
        assert {job.status for job in others} == {JobStatus.SUCCEEDED}


OLD = """
from ingot import Worker
worker = Worker()

@worker.handler("report", concurrency=4)
def report(job):
    return "old"
"""
NEW = """
from ingot import Worker
worker = Worker()

@worker.handler("report", "report.v2", concurrency=4)
def report(job):
    return f"new {job.type}"
"""


def test_two_releases_of_a_handler_run_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD, encoding="utf-8")
    (tmp_path / "new.py").write_text(NEW, encoding="utf-8")
    with crew(tmp_path) as one:
        old = one.work(app="old:worker", PYTHONPATH=_with(tmp_path))
        one.online(old)
        early = one.client.submit_many("report", range(20))
        waiting = one.client.submit_many("report.v2", range(20))
        assert {job.wait("60s").result for job in early} == {"old"}
        assert {job.refresh().status for job in waiting} == {JobStatus.QUEUED}, "the old one does not know them"
        new = one.work(app="new:worker", PYTHONPATH=_with(tmp_path))
        assert {job.wait("60s").result for job in waiting} == {"new report.v2"}
        both = one.client.submit_many("report", range(40))
        assert {job.wait("60s").result for job in both} <= {"old", "new report"}
        old.tell(signal.SIGTERM)
        assert old.wait() == 0
        late = one.client.submit_many("report", range(20))
        assert {job.wait("60s").result for job in late} == {"new report"}
        assert new.runs


def _with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_rolling_restart_of_all_workers_loses_and_repeats_no_job(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        workers = [one.work() for _ in range(4)]
        one.online(*workers)
        jobs = one.client.submit_many("tick", [{"seconds": 0.02, "place": one.place()}] * 2000)
        for place, worker in enumerate(workers):
            one.ran(100 + 400 * place)
            worker.tell(signal.SIGTERM)
            workers[place] = one.work()
            assert worker.wait() == 0
            one.online(workers[place])
        _all_done_once(one, [job.id for job in jobs])
        assert set(Counter(id for id, _ in one.noted()).values()) == {1}, "nothing ran twice"
        done = list(one.client.jobs())
        # A claim that a worker gave up while it went is returned unrun, and counts as an attempt on a slow machine.
        assert {(job.data.crashes, job.data.failures) for job in done} == {(0, 0)}
        earlier = [attempt for job in done if job.data.attempts > 1 for attempt in job.attempts()[:-1]]
        assert {attempt.outcome for attempt in earlier} <= {AttemptOutcome.RELEASED}
        assert len({job.result["pid"] for job in done}) > 4
