"""Files in handlers, with real processes: moved, broken off, killed, and too late."""

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
from tests.system.deployment import Crew, crew
from tests.system.file_handlers import content_of
from tests.system.programs import run_ingot
from tests.waiting import until

MIB = 1024 * 1024
HANDLERS = "tests.system.file_handlers:worker"
KINDS = ["thread", "async", "apart"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """A server and a worker, for all who do no harm to them."""
    with crew(tmp_path_factory.mktemp("files")) as one:
        one.work(app=HANDLERS)
        yield one


def typed(one: Crew, *words: str) -> str:
    """What a command writes."""
    known = {"INGOT_SERVER_URL": one.url, "INGOT_DATA": str(one.folder / "data")}
    done = run_ingot(*words, env={**os.environ, **known})
    assert done.code == 0, done.stderr
    return done.stdout


def outputs(job: SyncJob) -> dict[str, int]:
    return {file.name: file.size for file in job.files() if file.kind == "output"}


# -- what goes well -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_handler_downloads_and_uploads_files(place: Crew, tmp_path: Path, kind: str) -> None:
    small, large = b"a small file\n", os.urandom(3 * MIB + 17)
    (tmp_path / "small.txt").write_bytes(small)
    (tmp_path / "large.bin").write_bytes(large)
    files: dict[str, Any] = {"small.txt": tmp_path / "small.txt", "groß.bin": tmp_path / "large.bin", "none": b""}
    job = place.client.submit(f"turn.{kind}", file=files).wait("60s")
    assert job.outputs["turned-small.txt"].bytes() == small[::-1]
    assert job.outputs["turned-groß.bin"].bytes() == large[::-1]
    assert job.outputs["note.txt"].text() == "ä text"
    assert job.outputs["turned-none"].bytes() == b""
    assert job.outputs["joined.bin"].save(tmp_path).read_bytes() == large + b"" + small
    assert job.outputs["joined.bin"].read().content_type == "application/x-joined"
    assert {one["name"] for one in job.result["made"]} == outputs(job).keys()
    until(lambda: not Path(job.result["folder"]).exists(), why="the folder of the attempt is gone")
    with pytest.raises(FileNotFound):
        job.outputs["other"].text()


def test_download_without_a_name_returns_the_only_input(place: Crew, tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_text("alone", encoding="utf-8")
    job = place.client.submit("only", file=tmp_path / "only.txt").wait("30s")
    again = place.client.submit("only", inputs={"renamed.txt": job.data.inputs["only.txt"]}).wait("30s")
    assert (job.result, again.result) == ("alone", "alone")


@pytest.mark.parametrize("kind", KINDS)
def test_a_payload_of_three_mebibytes_is_sent_as_a_blob(place: Crew, kind: str) -> None:
    payload = {"text": "ä" * (3 * MIB // 2)}
    job = place.client.submit(f"size.{kind}", payload)
    assert job.wait("60s").result == 3 * MIB // 2
    assert job.payload == payload
    assert place.client.job(job.id).payload == payload


def test_large_and_small_payloads_can_be_submitted_together(place: Crew) -> None:
    jobs = place.client.submit_many("size.thread", [{"text": "x" * size} for size in (10, 100_000, 20, 200_000)])
    assert [job.wait("60s").result for job in jobs] == [10, 100_000, 20, 200_000]
    assert [job.data.payload_blob is None for job in jobs] == [True, False, True, False]


@pytest.mark.parametrize("kind", ["talk", "talk.apart"])
def test_a_log_of_one_mebibyte_can_be_read_in_full(place: Crew, kind: str) -> None:
    lines = 11_000
    job = place.client.submit(kind, {"lines": lines}).wait("60s")
    whole = "".join(f"{number:07d} ä {'x' * 90}\n" for number in range(lines))
    assert job.log() == whole
    assert place.client.log(job.id).text == whole[-LOG_TAIL_CHARS_MAX:]
    assert typed(place, "jobs", "logs", job.id) == whole


def test_the_full_log_of_a_failed_attempt_is_stored(place: Crew) -> None:
    job = place.client.submit("talk", {"lines": 2_000, "fails": True}, max_attempts=1)
    until(lambda: job.refresh().finished, why="it is dead")
    log = job.log()
    assert (log.startswith("0000000 ä"), "ValueError: it was talk" in log) == (True, True)


def test_the_command_line_submits_and_downloads_job_files(place: Crew, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first", encoding="utf-8")
    (tmp_path / "b.txt").write_text("second", encoding="utf-8")
    words = ["--file", str(tmp_path / "a.txt"), "--file", str(tmp_path / "b.txt"), "--wait", "--json"]
    job = json.loads(typed(place, "jobs", "submit", "turn.thread", *words))
    listed = typed(place, "jobs", "files", job["id"])
    assert [line.split()[:2] for line in listed.splitlines()[1:]] == [
        ["input", "a.txt"],
        ["input", "b.txt"],
        ["output", "joined.bin"],
        ["output", "note.txt"],
        ["output", "turned-a.txt"],
        ["output", "turned-b.txt"],
    ]
    to = tmp_path / "new" / "folder"
    typed(place, "jobs", "files", job["id"], "--download", str(to))
    assert {path.name: path.read_text(encoding="utf-8") for path in to.iterdir()} == {
        "joined.bin": "firstsecond",
        "note.txt": "ä text",
        "turned-a.txt": "tsrif",
        "turned-b.txt": "dnoces",
    }
    typed(place, "jobs", "files", job["id"], "--download", str(to))
    (to / "note.txt").write_text("another", encoding="utf-8")
    with pytest.raises(AssertionError, match="is there already"):
        typed(place, "jobs", "files", job["id"], "--download", str(to))
    typed(place, "jobs", "files", job["id"], "--download", str(to), "--replace")
    assert (to / "note.txt").read_text(encoding="utf-8") == "ä text"


# -- what goes wrong ----------------------------------------------------------------------------------------


def slow(one: Crew, mib: int = 4) -> tuple[SyncJob, Path]:
    """A job whose first attempt waits in the middle of its upload, and what it waits for."""
    go_on = one.notes / "go-on"
    job = one.client.submit("slow.upload", {"mib": mib, "reached": one.place(), "go_on": str(go_on)})
    one.ran(1)
    return job, go_on


def who_made(job: SyncJob) -> int | None:
    """The attempt whose output is the job's; `None` of anything else."""
    found, size = job.outputs["made.bin"].bytes(), job.payload["mib"] * MIB
    made = {number: content_of(job.id, number, size) for number in range(1, job.data.attempts + 1)}
    return next((number for number, data in made.items() if data == found), None)


def test_a_killed_worker_leaves_no_outputs(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=2.0) as one:
        first = one.work(app=HANDLERS)
        job, _ = slow(one)
        first.kill()
        assert (outputs(job), job.refresh().status) == ({}, JobStatus.RUNNING)
        one.work(app=HANDLERS)
        assert who_made(job.wait("60s")) == job.data.attempts >= 2
        assert outputs(job) == {"made.bin": 4 * MIB}
        one.client.blobs.collect(dry_run=False)
        usage = one.client.blobs.usage()
        assert (usage.bytes, usage.reserved_bytes) == (4 * MIB, 0), "nothing is left of what broke off"


def test_the_next_attempt_resumes_from_the_checkpoints_of_a_killed_worker(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=2.0) as one:
        first = one.work(app=HANDLERS)
        payload = {"pages": 10, "waits_before": 3, "go_on": str(one.notes / "go-on")}
        jobs = {kind: one.client.submit(f"pages.{kind}", {**payload, "place": one.place(kind)}) for kind in KINDS}
        until(lambda: all(["before", "3"] in one.noted(kind) for kind in KINDS), why="all have saved three pages")
        for job in jobs.values():
            assert [(file.kind, file.name) for file in job.files()] == [("checkpoint", f"{n}") for n in range(3)]
        first.kill()
        (one.notes / "go-on").touch()
        one.work(app=HANDLERS)
        for kind, job in jobs.items():
            last = job.wait("60s").data.attempts
            makers = [int(page.split()[-1]) for page in job.result]
            assert last > max(makers[:3]), "those pages are of an attempt before"
            assert makers[3:] == [last] * 7
            assert one.noted(kind)[-2:] == [["from", "3"], ["before", "3"]]
            assert job.files() == [], "a success leaves none of them"
        assert one.client.blobs.usage().bytes == 0


def test_the_upload_of_a_worker_that_lost_its_lease_is_refused(tmp_path: Path) -> None:
    with crew(tmp_path, lease_seconds=2.0) as one:
        first = one.work(app=HANDLERS)
        job, go_on = slow(one)
        first.tell(signal.SIGSTOP)
        one.work(app=HANDLERS)
        assert who_made(job.wait("60s")) == job.data.attempts >= 2
        go_on.touch()
        first.tell(signal.SIGCONT)
        one.ran(2)
        assert one.noted()[1] == ["lease_lost"]
        assert who_made(job.refresh()) == job.data.attempts
        assert outputs(job) == {"made.bin": 4 * MIB}


def test_an_upload_of_a_worker_resumes_after_the_server_was_killed(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        one.work(app=HANDLERS)
        job, go_on = slow(one, mib=36)
        one.server.kill()
        one.serve()
        go_on.touch()
        assert job.wait("60s").data.attempts == 1
        assert who_made(job) == 1
