"""Jobs while worker and server processes are killed, paused, drained and restarted."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from ingot.jobs.model import AttemptOutcome, JobStatus
from tests.system.deployment import Deployment, deploy, wait_until_finished, wait_until_running
from tests.waiting import until

pytestmark = pytest.mark.long


def test_another_worker_runs_the_job_of_a_killed_one_and_a_crash_is_counted(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=3) as deployment:
        first = deployment.start_worker()
        deployment.wait_until_online(first)
        job = wait_until_running(deployment.client.submit("wait"))
        first.kill()
        second = deployment.start_worker()
        job.wait("60s")
        assert (job.result, job.data.crashes, job.data.failures) == (2, 1, 0)
        assert [attempt.outcome for attempt in job.attempts()] == [AttemptOutcome.LOST, AttemptOutcome.SUCCEEDED]
        until(
            lambda: deployment.worker_statuses() == {first.pid: "offline", second.pid: "online"},
            why="the first worker is offline and the second online",
        )
        assert Counter(event["data"]["status"] for event in deployment.events("worker.")) == {"online": 2, "offline": 1}


def test_a_silent_worker_is_offline_until_it_resumes(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=1) as deployment:
        worker = deployment.start_worker()
        deployment.wait_until_online(worker)
        for times in (1, 2):
            worker.send_signal(signal.SIGSTOP)
            until(lambda: deployment.worker_statuses() == {worker.pid: "offline"}, why="the worker is offline")
            worker.send_signal(signal.SIGCONT)
            until(lambda: deployment.worker_statuses() == {worker.pid: "online"}, why="the worker is online again")
            statuses = [event["data"]["status"] for event in deployment.events("worker.")]
            assert statuses == ["online", *["offline", "online"] * (len(statuses) // 2)], (
                "the statuses do not alternate"
            )
            assert len(statuses) >= 1 + 2 * times  # On a slow machine it may be offline more often.
        assert (
            deployment.client.submit("tick", {"note_file": deployment.note_file()}).wait("60s").result["pid"]
            == worker.pid
        )


def test_a_server_suspended_for_longer_than_a_lease_takes_no_job_from_its_worker(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=5) as deployment:
        deployment.wait_until_online(deployment.start_worker())
        job = wait_until_running(deployment.client.submit("wait"))
        deployment.server.send_signal(signal.SIGSTOP)
        time.sleep(6)  # Longer than a lease.
        deployment.server.send_signal(signal.SIGCONT)
        lease_expires_at = job.refresh().data.lease_expires_at
        until(lambda: job.refresh().data.lease_expires_at != lease_expires_at, why="the lease is renewed or lost")
        assert (job.status, job.data.attempts, job.data.crashes) == (JobStatus.RUNNING, 1, 0)
        job.cancel()


def test_a_worker_that_drains_releases_unfinished_jobs_and_exits(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker(
            "--drain-seconds", "4"
        )  # The short job ends in time; the other one uses up the limit.
        deployment.wait_until_online(worker)
        waiting, ending = (
            wait_until_running(deployment.client.submit("wait")),
            wait_until_running(deployment.client.submit("tick", {"seconds": 0.3, "note_file": deployment.note_file()})),
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert deployment.worker_statuses() == {}
        assert ending.refresh().status is JobStatus.SUCCEEDED
        waiting.refresh()
        state = (waiting.status, waiting.data.attempts, waiting.data.crashes, waiting.data.failures)
        assert state == (JobStatus.QUEUED, 1, 0, 0)


def test_a_worker_exits_although_a_handler_does_not_stop(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        worker = deployment.start_worker("--drain-seconds", "0")
        deployment.wait_until_online(worker)
        job = wait_until_running(
            deployment.client.submit("deaf", {"seconds": 600, "note_file": deployment.note_file()})
        )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        assert "handlers_left_behind" in worker.output()
        assert (job.refresh().status, job.data.crashes) == (JobStatus.QUEUED, 0)


def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_others_can_be_canceled(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=3) as deployment:
        deployment.wait_until_online(deployment.start_worker())
        waiting_jobs = [
            wait_until_running(deployment.client.submit("wait", {"note_file": deployment.note_file()}))
            for _ in range(2)
        ]
        async_job = wait_until_running(deployment.client.submit("polite"))
        blocking_job = wait_until_running(
            deployment.client.submit("rude", {"seconds": 8, "note_file": deployment.note_file()})
        )
        deployment.wait_until_online(deployment.start_worker())  # It would claim jobs that the first worker loses.
        for job in (*waiting_jobs, async_job):
            job.cancel()
        assert blocking_job.wait("60s").result == 1
        wait_until_finished([*waiting_jobs, async_job])
        assert [job.status for job in (*waiting_jobs, async_job)] == [JobStatus.CANCELED] * 3
        notes = [arguments[0] for arguments in deployment.notes()]
        assert notes == ["blocks", "stopped", "stopped", "blocked"], (
            "the cancel was handled after the loop was free again"
        )
        assert (blocking_job.data.attempts, blocking_job.data.crashes) == (1, 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_of_the_server_loses_and_repeats_no_job(tmp_path: Path, number: signal.Signals) -> None:
    with deploy(tmp_path) as deployment:
        workers = [deployment.start_worker(), deployment.start_worker()]
        deployment.wait_until_online(*workers)
        jobs = deployment.client.submit_many("tick", [{"seconds": 0.01, "note_file": deployment.note_file()}] * 1000)
        for notes_min in (100, 400, 700):
            deployment.wait_for_notes(notes_min)
            deployment.server.send_signal(number)
            deployment.server.wait()
            deployment.start_server()
        _all_done_once(deployment, [job.id for job in jobs])


def _all_done_once(deployment: Deployment, ids: list[str]) -> None:
    """Check that every job succeeded once, and that repeated runs are counted as attempts."""

    def is_done() -> bool:
        counts = deployment.client.summary().counts
        return counts[JobStatus.SUCCEEDED] == len(ids) or counts[JobStatus.DEAD] > 0

    until(is_done, seconds=90, why="all jobs are finished")
    done = {job.id: job for job in deployment.client.jobs(status="succeeded")}
    assert set(done) == set(ids)
    wait_for_notes = Counter(id for id, _ in deployment.notes())
    assert set(wait_for_notes) == set(ids)
    assert all(wait_for_notes[id] <= job.data.attempts for id, job in done.items())
    completed = Counter(event["data"]["id"] for event in deployment.events("job.completed"))
    assert completed == dict.fromkeys(ids, 1)


def test_a_job_that_kills_its_worker_is_dead_after_its_crash_cap(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=1) as deployment:
        workers = [deployment.start_worker(), deployment.start_worker()]
        deployment.wait_until_online(*workers)
        poison = deployment.client.submit("poison", {"note_file": deployment.note_file("poison")})
        others = deployment.client.submit_many("tick", [{"seconds": 0.2, "note_file": deployment.note_file()}] * 60)
        restarts = 0

        def is_dead() -> bool:
            nonlocal restarts
            for index, worker in enumerate(workers):
                if not worker.is_running:
                    workers[index], restarts = deployment.start_worker(), restarts + 1
            return poison.refresh().finished

        until(is_dead, seconds=90, why="the job is dead")
        for job in others:
            job.wait("60s")
        assert (poison.status, poison.data.crashes, poison.data.attempts) == (JobStatus.DEAD, 3, 3)
        assert [arguments[1] for arguments in deployment.notes("poison")] == ["1", "2", "3"]
        assert restarts == 3 - sum(not worker.is_running for worker in workers)
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
    with deploy(tmp_path) as deployment:
        old = deployment.start_worker(app="old:worker", PYTHONPATH=_with(tmp_path))
        deployment.wait_until_online(old)
        early = deployment.client.submit_many("report", range(20))
        waiting = deployment.client.submit_many("report.v2", range(20))
        assert {job.wait("60s").result for job in early} == {"old"}
        assert {job.refresh().status for job in waiting} == {JobStatus.QUEUED}, (
            "the old worker claimed jobs of the new type"
        )
        new = deployment.start_worker(app="new:worker", PYTHONPATH=_with(tmp_path))
        assert {job.wait("60s").result for job in waiting} == {"new report.v2"}
        both = deployment.client.submit_many("report", range(40))
        assert {job.wait("60s").result for job in both} <= {"old", "new report"}
        old.send_signal(signal.SIGTERM)
        assert old.wait() == 0
        late = deployment.client.submit_many("report", range(20))
        assert {job.wait("60s").result for job in late} == {"new report"}
        assert new.is_running


def _with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_rolling_restart_of_all_workers_loses_and_repeats_no_job(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        workers = [deployment.start_worker() for _ in range(4)]
        deployment.wait_until_online(*workers)
        jobs = deployment.client.submit_many("tick", [{"seconds": 0.02, "note_file": deployment.note_file()}] * 2000)
        for index, worker in enumerate(workers):
            deployment.wait_for_notes(100 + 400 * index)
            worker.send_signal(signal.SIGTERM)
            workers[index] = deployment.start_worker()
            assert worker.wait() == 0
            deployment.wait_until_online(workers[index])
        _all_done_once(deployment, [job.id for job in jobs])
        assert set(Counter(id for id, _ in deployment.notes()).values()) == {1}, "a job ran twice"
        done = list(deployment.client.jobs())
        # A draining worker releases claimed jobs that it has not run, which counts as an attempt.
        assert {(job.data.crashes, job.data.failures) for job in done} == {(0, 0)}
        earlier = [attempt for job in done if job.data.attempts > 1 for attempt in job.attempts()[:-1]]
        assert {attempt.outcome for attempt in earlier} <= {AttemptOutcome.RELEASED}
        assert len({job.result["pid"] for job in done}) > 4
