"""Files in handlers of real workers: transfers, interruptions, kills and lost leases."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.client.synchronous.job import SyncJob
from ingot.jobs.attempt_logs import LOG_TAIL_CHARS_MAX
from ingot.jobs.files import FileNotFound
from ingot.jobs.model import JobStatus
from tests.system.deployment import Deployment, deploy
from tests.system.file_handlers import content_of
from tests.system.programs import run_ingot
from tests.waiting import until

MIB = 1024 * 1024
HANDLERS = "tests.system.file_handlers:worker"
KINDS = ["thread", "async", "isolated"]


@pytest.fixture(scope="module")
def shared_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A server and a worker, for tests that do not stop or kill them."""
    with deploy(tmp_path_factory.mktemp("files")) as deployment:
        deployment.start_worker(app=HANDLERS)
        yield deployment


def run_command(deployment: Deployment, *arguments: str) -> str:
    """Run a command that must succeed, and return its stdout."""
    variables = {"INGOT_SERVER_URL": deployment.url, "INGOT_DATA": str(deployment.folder / "data")}
    done = run_ingot(*arguments, env={**os.environ, **variables})
    assert done.code == 0, done.stderr
    return done.stdout


def outputs(job: SyncJob) -> dict[str, int]:
    return {file.name: file.size for file in job.files() if file.kind == "output"}


# -- transfers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_handler_downloads_and_uploads_files(
    shared_deployment: Deployment, tmp_path: Path, kind: str
) -> None:
    small, large = b"a small file\n", os.urandom(3 * MIB + 17)
    (tmp_path / "small.txt").write_bytes(small)
    (tmp_path / "large.bin").write_bytes(large)
    files: dict[str, Any] = {"small.txt": tmp_path / "small.txt", "groß.bin": tmp_path / "large.bin", "none": b""}
    job = shared_deployment.client.submit(f"turn.{kind}", file=files).wait("60s")
    assert job.outputs["turned-small.txt"].bytes() == small[::-1]
    assert job.outputs["turned-groß.bin"].bytes() == large[::-1]
    assert job.outputs["note.txt"].text() == "ä text"
    assert job.outputs["turned-none"].bytes() == b""
    assert job.outputs["joined.bin"].save(tmp_path).read_bytes() == large + b"" + small
    assert job.outputs["joined.bin"].read().content_type == "application/x-joined"
    assert {deployment["name"] for deployment in job.result["outputs"]} == outputs(job).keys()
    until(lambda: not Path(job.result["folder"]).exists(), why="the folder of the attempt is deleted")
    with pytest.raises(FileNotFound):
        job.outputs["other"].text()


def test_download_without_a_name_returns_the_only_input(shared_deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("alone", encoding="utf-8")
    job = shared_deployment.client.submit("only", file=tmp_path / "only.txt").wait("30s")
    again = shared_deployment.client.submit("only", inputs={"renamed.txt": job.data.inputs["only.txt"]}).wait("30s")
    assert (job.result, again.result) == ("alone", "alone")


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_of_three_mebibytes_is_sent_as_a_blob(shared_deployment: Deployment, kind: str) -> None:
    payload = {"text": "ä" * (3 * MIB // 2)}
    job = shared_deployment.client.submit(f"size.{kind}", payload)
    assert job.wait("60s").result == 3 * MIB // 2
    assert job.payload == payload
    assert shared_deployment.client.job(job.id).payload == payload


def test_large_and_small_payloads_can_be_submitted_together(shared_deployment: Deployment) -> None:
    jobs = shared_deployment.client.submit_many(
        "size.thread", [{"text": "x" * size} for size in (10, 100_000, 20, 200_000)]
    )
    assert [job.wait("60s").result for job in jobs] == [10, 100_000, 20, 200_000]
    assert [job.data.payload_blob is None for job in jobs] == [True, False, True, False]


@pytest.mark.parametrize("kind", ["talk", "talk.isolated"])
def test_a_log_of_one_mebibyte_can_be_read_in_full(shared_deployment: Deployment, kind: str) -> None:
    lines = 11_000
    job = shared_deployment.client.submit(kind, {"lines": lines}).wait("60s")
    expected = "".join(f"{number:07d} ä {'x' * 90}\n" for number in range(lines))
    assert job.log() == expected
    assert shared_deployment.client.log(job.id).text == expected[-LOG_TAIL_CHARS_MAX:]
    assert run_command(shared_deployment, "jobs", "logs", job.id) == expected


def test_the_full_log_of_a_failed_attempt_is_stored(shared_deployment: Deployment) -> None:
    job = shared_deployment.client.submit("talk", {"lines": 2_000, "fails": True}, max_attempts=1)
    until(lambda: job.refresh().finished, why="the job is dead")
    log = job.log()
    assert (log.startswith("0000000 ä"), "ValueError: it was talk" in log) == (True, True)


def test_the_command_line_submits_and_downloads_job_files(shared_deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first", encoding="utf-8")
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    arguments = ["--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.txt"), "--wait", "--json"]
    job = json.loads(run_command(shared_deployment, "jobs", "submit", "turn.thread", *arguments))
    listed = run_command(shared_deployment, "jobs", "files", job["id"])
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [
        ["input", "a.txt"],
        ["input", "b.txt"],
        ["output", "joined.bin"],
        ["output", "note.txt"],
        ["output", "turned-a.txt"],
        ["output", "turned-b.txt"],
    ]
    target = tmp_path / "new" / "folder"
    run_command(shared_deployment, "jobs", "files", job["id"], "--download", str(target))
    assert {path.name: path.read_text(encoding="utf-8") for path in target.iterdir()} == {
        "joined.bin": "firstsecond",
        "note.txt": "ä text",
        "turned-a.txt": "tsrif",
        "turned-b.txt": "dnoces",
    }
    run_command(shared_deployment, "jobs", "files", job["id"], "--download", str(target))
    (target / "note.txt").write_text("another", encoding="utf-8")
    with pytest.raises(AssertionError, match="exists already"):
        run_command(shared_deployment, "jobs", "files", job["id"], "--download", str(target))
    run_command(shared_deployment, "jobs", "files", job["id"], "--download", str(target), "--replace")
    assert (target / "note.txt").read_text(encoding="utf-8") == "ä text"


# -- failures -----------------------------------------------------------------------------------------------


def start_slow_upload(deployment: Deployment, mib: int = 4) -> tuple[SyncJob, Path]:
    """Start a job whose first attempt pauses in its upload. Return it and the file that it waits for."""
    resume_file = deployment.notes_folder / "go-on"
    job = deployment.client.submit(
        "slow.upload", {"mib": mib, "note_file": deployment.note_file(), "resume_file": str(resume_file)}
    )
    deployment.wait_for_notes(1)
    return job, resume_file


def attempt_of_output(job: SyncJob) -> int | None:
    """Return the number of the attempt that uploaded the output of a job, or `None`."""
    output, size = job.outputs["made.bin"].bytes(), job.payload["mib"] * MIB
    outputs_by_attempt = {number: content_of(job.id, number, size) for number in range(1, job.data.attempts + 1)}
    return next((number for number, data in outputs_by_attempt.items() if data == output), None)


def test_a_killed_worker_leaves_no_outputs(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=2.0) as deployment:
        first = deployment.start_worker(app=HANDLERS)
        job, _ = start_slow_upload(deployment)
        first.kill()
        assert (outputs(job), job.refresh().status) == ({}, JobStatus.RUNNING)
        deployment.start_worker(app=HANDLERS)
        assert attempt_of_output(job.wait("60s")) == job.data.attempts >= 2
        assert outputs(job) == {"made.bin": 4 * MIB}
        deployment.client.blobs.collect(dry_run=False)
        usage = deployment.client.blobs.usage()
        assert (usage.bytes, usage.reserved_bytes) == (4 * MIB, 0), "the interrupted upload left bytes"


def test_the_next_attempt_resumes_from_the_checkpoints_of_a_killed_worker(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=2.0) as deployment:
        first = deployment.start_worker(app=HANDLERS)
        payload = {"pages": 10, "waits_before": 3, "resume_file": str(deployment.notes_folder / "go-on")}
        jobs = {
            kind: deployment.client.submit(f"pages.{kind}", {**payload, "note_file": deployment.note_file(kind)})
            for kind in KINDS
        }
        until(
            lambda: all(["before", "3"] in deployment.notes(kind) for kind in KINDS),
            why="all jobs have saved three pages",
        )
        for job in jobs.values():
            assert [(file.kind, file.name) for file in job.files()] == [("checkpoint", f"{n}") for n in range(3)]
        first.kill()
        (deployment.notes_folder / "go-on").touch()
        deployment.start_worker(app=HANDLERS)
        for kind, job in jobs.items():
            last = job.wait("60s").data.attempts
            makers = [int(page.split()[-1]) for page in job.result]
            assert last > max(makers[:3]), "the first pages are not from an earlier attempt"
            assert makers[3:] == [last] * 7
            assert deployment.notes(kind)[-2:] == [["from", "3"], ["before", "3"]]
            assert job.files() == [], "checkpoints were not deleted"
        assert deployment.client.blobs.usage().bytes == 0


def test_the_upload_of_a_worker_that_lost_its_lease_is_refused(tmp_path: Path) -> None:
    with deploy(tmp_path, lease_seconds=2.0) as deployment:
        first = deployment.start_worker(app=HANDLERS)
        job, resume_file = start_slow_upload(deployment)
        first.send_signal(signal.SIGSTOP)
        deployment.start_worker(app=HANDLERS)
        assert attempt_of_output(job.wait("60s")) == job.data.attempts >= 2
        resume_file.touch()
        first.send_signal(signal.SIGCONT)
        deployment.wait_for_notes(2)
        assert deployment.notes()[1] == ["lease_lost"]
        assert attempt_of_output(job.refresh()) == job.data.attempts
        assert outputs(job) == {"made.bin": 4 * MIB}


def test_an_upload_of_a_worker_resumes_after_the_server_was_killed(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        deployment.start_worker(app=HANDLERS)
        job, resume_file = start_slow_upload(deployment, mib=36)
        deployment.server.kill()
        deployment.start_server()
        resume_file.touch()
        assert job.wait("60s").data.attempts == 1
        assert attempt_of_output(job) == 1
