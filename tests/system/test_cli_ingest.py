"""`ingot ingest` as people type it: real files, a real server, and a worker that stands for that of documents."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ingot.cli.document_files import DocumentFilter, find_documents
from ingot.cli.ingest_pipeline import IngestBars, IngestOptions, IngestOutcome, IngestPipeline
from ingot.cli.progress import ItemProgress, StepBar
from ingot.client import Client
from ingot.kernel.errors import IngotError
from tests.system.deployment import Crew, crew
from tests.system.lossy_proxy import losing
from tests.system.programs import Done
from tests.system.shell import Shell
from tests.waiting import until

HANDLERS = "tests.system.document_handlers:worker"
MIB = 1024 * 1024
LARGE = b"%PDF-1.7\n" + Random(9).randbytes(3 * MIB)


class Desk:
    """A server with a worker, and a folder in which commands are typed."""

    def __init__(self, folder: Path, crew: Crew) -> None:
        self.folder = folder
        self.crew = crew
        self.shell = Shell(crew.folder, crew.url)
        self.shell.folder = folder
        self.shell.environment["INGOT_DATA"] = str(crew.folder / "data")

    def write(self, **files: bytes) -> None:
        """Files by their paths, in which __ stands for / and a PDF is what they are unless told."""
        for name, content in files.items():
            path = self.folder / f"{name.replace('__', '/')}.pdf"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%PDF-1.7\n" + content)

    def run(self, *words: str, **environment: str) -> Done:
        """Type a command."""
        return self.shell.run("ingest", *words, **environment)

    def lines(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """What is written of each document, for programs."""
        done = self.run(*words, "--json")
        assert done.code == code, done
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    with crew(tmp_path_factory.mktemp("crew")) as one:
        one.client.admin.define("pdf", reuse=False)  # Tests send the same few bytes; those of `ocr` are used again.
        one.online(one.work(app=HANDLERS))
        yield one


@pytest.fixture
def desk(standing: Crew, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, standing)
    yield made
    made.shell.close()


def test_ingest_converts_a_folder_and_fetches_the_outputs(desk: Desk) -> None:
    desk.write(docs__b=b"B", docs__a__report=b"A")
    (desk.folder / "docs" / "large.pdf").write_bytes(LARGE)
    (desk.folder / "docs" / "scan.png").write_bytes(b"\x89PNG\r\n\x1a\n scan")
    (desk.folder / "docs" / "notes.txt").write_text("notes", encoding="utf-8")
    (desk.folder / "docs" / "torn.pdf").write_text("no PDF", encoding="utf-8")
    done = desk.run("docs", "--output", "out", "--options", '{"pages": "1-3"}', "--tag", "t1", "--priority", "low")
    assert done.code == 2, done
    words = [line.split() for line in done.stdout.splitlines()]
    paths = ["docs/b.pdf", "docs/large.pdf", "docs/scan.png", "docs/a/report.pdf"]
    assert [(word[0], word[-1]) for word in words] == [("done", path) for path in paths]
    assert "Skipped: 1 " in done.stderr
    assert "docs/torn.pdf" in done.stderr
    assert "4 done, 1 failed" in done.stderr
    assert (desk.folder / "out" / "a" / "report" / "report.md").read_bytes() == b"A\n7.1-FDP%"
    assert (desk.folder / "out" / "large" / "large.md").read_bytes() == LARGE[::-1]
    assert sorted(path.name for path in (desk.folder / "out" / "scan").iterdir()) == ["picture.png", "scan.md"]
    job = desk.shell.job(words[-1][1])
    assert (job["type"], job["tags"], job["priority"], job["payload"]) == ("pdf", ["t1"], 4, {"pages": "1-3"})
    assert job["result"]["path"] == {"path": "a/report.pdf"}


def test_ingest_without_waiting_prints_the_jobs(desk: Desk) -> None:
    desk.write(a=b"1", b=b"2")
    (first, second) = desk.lines("*.pdf", "--batch", "two")
    assert (first["path"], second["path"], first["error"], first["outputs"]) == ("a.pdf", "b.pdf", None, [])
    assert desk.shell.job(first["job_id"])["batch"] == "two"
    assert first.keys() == {"path", "type", "job_id", "status", "reused", "outputs", "error"}


def test_ingest_skips_equal_outputs_and_reports_conflicting_files(desk: Desk) -> None:
    desk.write(docs__a=b"1", docs__b=b"2")
    (first, _) = desk.lines("docs", "--output", "out")
    assert first["outputs"] == ["out/a/a.md", "out/a/picture.png"]
    there = desk.folder / "out" / "a" / "a.md"
    os.utime(there, (1, 1))
    desk.lines("docs", "--output", "out")
    assert there.stat().st_mtime == 1
    there.write_text("mine", encoding="utf-8")
    (first, second) = desk.lines("docs", "--output", "out", code=4)
    assert (first["error"]["code"], second["error"]) == ("conflict", None)
    assert there.read_text(encoding="utf-8") == "mine"
    desk.lines("docs", "--output", "out", "--replace")
    assert there.read_bytes() == b"1\n7.1-FDP%"


def test_a_failed_document_does_not_stop_the_others(desk: Desk) -> None:
    desk.write(docs__a=b"1", docs__b=b"fails", docs__c=b"3")
    (desk.folder / "docs" / "memory.pdf").symlink_to("/proc/self/mem")  # Which nobody may read at 0.
    (desk.folder / "docs" / "gone.pdf").symlink_to("nowhere")
    (desk.folder / os.fsdecode(b"docs/\xff.pdf")).write_bytes(b"%PDF-1.7")
    done = desk.run("docs", "--wait", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["path"]: (line["error"] or {}).get("code") for line in lines} == {
        "docs/a.pdf": None,
        "docs/b.pdf": "job_dead",
        "docs/c.pdf": None,
        "docs/memory.pdf": "file_refused",
        "docs/\ufffd.pdf": "invalid_input",
    }
    assert (done.code, lines[1]["status"]) == (8, "dead")
    assert "docs/b.pdf: " in done.stderr
    assert "page 3 is torn" in done.stderr
    assert "docs/gone.pdf" in done.stderr
    assert "2 done, 3 failed." in done.stderr
    assert "3 of 5 documents failed" in done.stderr


def test_two_documents_with_the_same_output_path_are_a_conflict(desk: Desk) -> None:
    desk.write(one__a=b"1", two__a=b"2")
    (first, second) = desk.lines("one", "two", "--output", "out", code=4)
    assert (first["error"], second["error"]["code"], second["job_id"]) == (None, "conflict", None)
    assert "one/a.pdf" in second["error"]["detail"]
    assert (desk.folder / "out" / "a" / "a.md").read_bytes() == b"1\n7.1-FDP%"
    assert len(desk.lines("one", "two")) == 2


def test_a_git_lfs_pointer_is_never_sent(desk: Desk) -> None:
    desk.write(docs__a=b"1")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4\n"
    (desk.folder / "docs" / "b.pdf").write_text(pointer, encoding="utf-8")
    (sent, kept) = desk.lines("docs", code=2)
    assert (sent["error"], kept["error"]["code"], kept["job_id"]) == (None, "pointer_unresolved", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere"),
        (["empty"], "no documents"),
        (["'*.pdf"], "no documents"),
        (["notes.txt"], "notes.txt"),
        (["torn.pdf"], "torn.pdf"),
        (["torn.pdf", "--options", "{"], "--options"),
        (["torn.pdf", "--timeout", "1s"], "--wait"),
        (["torn.pdf", "--replace"], "--output"),
        (["torn.pdf", "--priority", "urgent"], "'urgent'"),
    ],
)
def test_ingest_explains_invalid_arguments(desk: Desk, words: list[str], said: str) -> None:
    (desk.folder / "empty").mkdir()
    (desk.folder / "notes.txt").touch()
    (desk.folder / "torn.pdf").touch()
    done = desk.run(*words)
    assert (done.code, done.stdout, said in done.stderr, "Hint: " in done.stderr) == (2, "", True, True), done


def test_a_dry_run_of_ingest_changes_nothing(desk: Desk) -> None:
    desk.write(docs__a=b"1", docs__draft=b"2")
    (desk.folder / "docs" / "torn.pdf").touch()
    done = desk.run("docs", "--exclude", "draft*", "--dry-run", INGOT_SERVER_URL="http://127.0.0.1:9")
    assert (done.code, done.stdout.split()) == (2, ["pdf", "10", "B", "docs/a.pdf"])
    assert "Skipped: 1 " in done.stderr
    assert "docs/torn.pdf" in done.stderr
    assert desk.lines("docs/a.pdf", "--dry-run") == [{"path": "docs/a.pdf", "type": "pdf", "size": 10}]


def test_a_wrong_token_is_reported_before_any_upload(desk: Desk) -> None:
    desk.write(a=b"1")
    done = desk.run("a.pdf", INGOT_TOKEN="ingot_" + "a" * 60)
    assert (done.code, done.stdout, "INGOT_TOKEN" in done.stderr) == (7, "", True)


def test_ingest_warns_of_a_type_without_workers(desk: Desk) -> None:
    desk.write(a=b"1", b=b"2")
    done = desk.run("a.pdf", "b.pdf", "--type", "embed")
    assert done.stderr.count("ingot worker --handlers embed") == 1
    mine = desk.run("a.pdf", "--type", "mine", "--wait", "--timeout", "1s")
    assert (mine.code, "ingot worker --app" in mine.stderr, "queued" in mine.stderr) == (9, True, True)
    assert "online" not in desk.run("a.pdf", "--wait").stderr


def test_a_quota_reached_during_ingest_fails_that_document(desk: Desk) -> None:
    desk.write(docs__a=b"small", docs__c=b"small too")
    (desk.folder / "docs" / "b.pdf").write_bytes(LARGE)
    made = desk.shell.json("tokens", "create", "the shop", "--grant", "*", "--limit", "quota_bytes=100000")
    (desk.folder / "shop.token").write_text(made["token"], encoding="utf-8")
    lines = desk.lines("docs", "--token-file", "shop.token", code=5)
    assert [(line["error"] or {}).get("code") for line in lines] == [None, "quota_exceeded", None]


def test_ingest_shows_progress_on_a_terminal(desk: Desk) -> None:
    desk.write(docs__a=b"1")
    (desk.folder / "docs" / "large.pdf").write_bytes(LARGE)
    seen, code = desk.shell.on_terminal("ingest", "docs", "--wait")
    assert code == 0
    for label in ("hashing", "sending", "converting", "2 of 2"):
        assert label in seen


def test_jobs_submitted_before_ctrl_c_stay(desk: Desk) -> None:
    desk.write(docs__a=b"waits", docs__b=b"1")

    def submitted() -> list[Any]:
        found = list(desk.crew.client.jobs(tag="stopped"))
        running = [job for job in found if not job.finished]
        return running if (len(found), len(running)) == (2, 1) and running[0].progress else []

    with desk.shell.start("ingest", "docs", "--wait", "--tag", "stopped", "--json") as process:
        until(submitted)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, "same command" in stderr, "Traceback" in stderr) == (130, True, False)
    assert [json.loads(line)["path"] for line in stdout.splitlines()] in ([], ["docs/b.pdf"])
    (waiting,) = (job for job in desk.crew.client.jobs(tag="stopped") if not job.finished)
    waiting.cancel()


def test_ingest_reuses_finished_jobs_unless_forced(desk: Desk) -> None:
    (desk.folder / "scan.png").write_bytes(b"\x89PNG\r\n\x1a\n done once")
    (first,) = desk.lines("scan.png", "--output", "out")
    (again,) = desk.lines("scan.png", "--output", "out")
    assert (first["reused"], again["reused"], again["job_id"]) == (False, True, first["job_id"])
    assert desk.run("scan.png", "--wait").stdout.startswith("already done")
    (forced,) = desk.lines("scan.png", "--wait", "--force")
    assert (forced["reused"], forced["job_id"] != first["job_id"]) == (False, True)


# -- what goes wrong on the way -------------------------------------------------------------------------------


def test_a_lost_response_creates_no_second_job(desk: Desk) -> None:
    desk.write(docs__a=b"1", docs__b=b"2", docs__c=b"3")
    with losing(desk.crew.url, b"POST /api/v1/jobs ") as relay:
        lines = desk.lines("docs", "--tag", "lost", "--server", relay.url)
        assert relay.lost > 1
    jobs = {job.id: job.data.read("metadata")["path"] for job in desk.crew.client.jobs(tag="lost")}
    assert sorted(jobs.values()) == ["a.pdf", "b.pdf", "c.pdf"]
    assert {line["job_id"] for line in lines} == jobs.keys()


def test_ingest_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with crew(tmp_path) as one:
        desk = Desk(tmp_path, one)
        desk.write(**{f"docs__{n:03}": str(n).encode() for n in range(200)})
        with desk.shell.start("ingest", "docs") as process:
            until(lambda: len(list(one.client.jobs(limit=20))) == 20)
            one.server.kill()
            one.serve()
            stdout, _ = process.communicate(timeout=50)
        assert (process.returncode, len(stdout.splitlines())) == (0, 200)
        jobs = [job.data for job in one.client.jobs()]
        assert {job.status.value for job in jobs} == {"queued"}
        assert sorted(job.read("metadata")["path"] for job in jobs) == [f"{n:03}.pdf" for n in range(200)]
        desk.shell.close()


class Changing(StepBar):
    """A step that changes a file once that is hashed."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, "hashing", 0, str)
        self._path = path

    def item(self, total: int) -> ItemProgress:
        changes = self._path

        class Changed(ItemProgress):
            def __call__(self, done: int, total: int) -> None:
                if done == total:
                    with changes.open("r+b") as file:
                        file.seek(MIB)
                        file.write(b"changed")

        return Changed(self, total)


def test_a_file_that_changes_during_its_upload_fails(desk: Desk) -> None:
    path = desk.folder / "large.pdf"
    path.write_bytes(b"%PDF-1.7\n" + Random(11).randbytes(3 * MIB))
    ended: list[tuple[IngestOutcome, IngotError | None]] = []
    nothing = StepBar(None, "", 0, str)
    steps = IngestBars(Changing(path), nothing, nothing)
    found = find_documents([path], DocumentFilter(), print)
    token = desk.crew.headers["authorization"].removeprefix("Bearer ")
    with Client(desk.crew.url, token=token) as client:
        course = IngestOptions(wait=True)
        IngestPipeline(client, course, steps, report=lambda *told: ended.append(told), print_message=pytest.fail).run(
            found.documents
        )
    ((outcome, error),) = ended
    assert error is not None
    assert (error.code, outcome.job_id) == ("wrong_digest", None)
