"""`ingot ingest` with a real server and a worker whose handlers replace the document handlers."""

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
from tests.system.deployment import Deployment, deploy
from tests.system.lossy_proxy import lossy_proxy
from tests.system.programs import CommandResult
from tests.system.shell import Shell
from tests.waiting import until

HANDLERS = "tests.system.document_handlers:worker"
MIB = 1024 * 1024
LARGE = b"%PDF-1.7\n" + Random(9).randbytes(3 * MIB)


class Workspace:
    """A server with a worker, and a folder in which commands run."""

    def __init__(self, folder: Path, deploy: Deployment) -> None:
        self.folder = folder
        self.deploy = deploy
        self.shell = Shell(deploy.folder, deploy.url)
        self.shell.folder = folder
        self.shell.environment["INGOT_DATA"] = str(deploy.folder / "data")

    def write(self, **files: bytes) -> None:
        """Write PDFs. In their names, __ stands for /."""
        for name, content in files.items():
            path = self.folder / f"{name.replace('__', '/')}.pdf"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%PDF-1.7\n" + content)

    def run(self, *arguments: str, **environment: str) -> CommandResult:
        """Run `ingot ingest`."""
        return self.shell.run("ingest", *arguments, **environment)

    def lines(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """Run `ingot ingest --json`, and return the line of each document."""
        done = self.run(*arguments, "--json")
        assert done.code == code, done
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def shared_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deploy(tmp_path_factory.mktemp("crew")) as deployment:
        deployment.client.admin.define(
            "pdf", reuse=False
        )  # Tests submit the same few bytes. Only jobs of `ocr` are reused.
        deployment.wait_until_online(deployment.start_worker(app=HANDLERS))
        yield deployment


@pytest.fixture
def workspace(shared_deployment: Deployment, tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path, shared_deployment)
    yield workspace
    workspace.shell.close()


def test_ingest_converts_a_folder_and_fetches_the_outputs(workspace: Workspace) -> None:
    workspace.write(docs__b=b"B", docs__a__report=b"A")
    (workspace.folder / "docs" / "large.pdf").write_bytes(LARGE)
    (workspace.folder / "docs" / "scan.png").write_bytes(b"\x89PNG\r\n\x1a\n scan")
    (workspace.folder / "docs" / "notes.txt").write_text("notes", encoding="utf-8")
    (workspace.folder / "docs" / "torn.pdf").write_text("no PDF", encoding="utf-8")
    done = workspace.run("docs", "--output", "out", "--options", '{"pages": "1-3"}', "--tag", "t1", "--priority", "low")
    assert done.code == 2, done
    arguments = [line.split() for line in done.stdout.splitlines()]
    paths = ["docs/b.pdf", "docs/large.pdf", "docs/scan.png", "docs/a/report.pdf"]
    assert [(word[0], word[-1]) for word in arguments] == [("done", path) for path in paths]
    assert "Skipped: 1 " in done.stderr
    assert "docs/torn.pdf" in done.stderr
    assert "4 done, 1 failed" in done.stderr
    assert (workspace.folder / "out" / "a" / "report" / "report.md").read_bytes() == b"A\n7.1-FDP%"
    assert (workspace.folder / "out" / "large" / "large.md").read_bytes() == LARGE[::-1]
    assert sorted(path.name for path in (workspace.folder / "out" / "scan").iterdir()) == ["picture.png", "scan.md"]
    job = workspace.shell.job(arguments[-1][1])
    assert (job["type"], job["tags"], job["priority"], job["payload"]) == ("pdf", ["t1"], 4, {"pages": "1-3"})
    assert job["result"]["path"] == {"path": "a/report.pdf"}


def test_ingest_without_waiting_prints_the_jobs(workspace: Workspace) -> None:
    workspace.write(a=b"1", b=b"2")
    (first, second) = workspace.lines("*.pdf", "--batch", "two")
    assert (first["path"], second["path"], first["error"], first["outputs"]) == ("a.pdf", "b.pdf", None, [])
    assert workspace.shell.job(first["job_id"])["batch"] == "two"
    assert first.keys() == {"path", "type", "job_id", "status", "reused", "outputs", "error"}


def test_ingest_skips_equal_outputs_and_reports_conflicting_files(workspace: Workspace) -> None:
    workspace.write(docs__a=b"1", docs__b=b"2")
    (first, _) = workspace.lines("docs", "--output", "out")
    assert first["outputs"] == ["out/a/a.md", "out/a/picture.png"]
    existing = workspace.folder / "out" / "a" / "a.md"
    os.utime(existing, (1, 1))
    workspace.lines("docs", "--output", "out")
    assert existing.stat().st_mtime == 1
    existing.write_text("mine", encoding="utf-8")
    (first, second) = workspace.lines("docs", "--output", "out", code=4)
    assert (first["error"]["code"], second["error"]) == ("conflict", None)
    assert existing.read_text(encoding="utf-8") == "mine"
    workspace.lines("docs", "--output", "out", "--replace")
    assert existing.read_bytes() == b"1\n7.1-FDP%"


def test_a_failed_document_does_not_stop_the_others(workspace: Workspace) -> None:
    workspace.write(docs__a=b"1", docs__b=b"fails", docs__c=b"3")
    (workspace.folder / "docs" / "memory.pdf").symlink_to("/proc/self/mem")  # This file cannot be read at offset 0.
    (workspace.folder / "docs" / "gone.pdf").symlink_to("nowhere")
    (workspace.folder / os.fsdecode(b"docs/\xff.pdf")).write_bytes(b"%PDF-1.7")
    done = workspace.run("docs", "--wait", "--json")
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


def test_two_documents_with_the_same_output_path_are_a_conflict(workspace: Workspace) -> None:
    workspace.write(one__a=b"1", two__a=b"2")
    (first, second) = workspace.lines("one", "two", "--output", "out", code=4)
    assert (first["error"], second["error"]["code"], second["job_id"]) == (None, "conflict", None)
    assert "one/a.pdf" in second["error"]["detail"]
    assert (workspace.folder / "out" / "a" / "a.md").read_bytes() == b"1\n7.1-FDP%"
    assert len(workspace.lines("one", "two")) == 2


def test_a_git_lfs_pointer_is_never_sent(workspace: Workspace) -> None:
    workspace.write(docs__a=b"1")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 4\n"
    (workspace.folder / "docs" / "b.pdf").write_text(pointer, encoding="utf-8")
    (sent, pointer_line) = workspace.lines("docs", code=2)
    assert (sent["error"], pointer_line["error"]["code"], pointer_line["job_id"]) == (None, "pointer_unresolved", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_ingest_explains_invalid_arguments(workspace: Workspace, arguments: list[str], message: str) -> None:
    (workspace.folder / "empty").mkdir()
    (workspace.folder / "notes.txt").touch()
    (workspace.folder / "torn.pdf").touch()
    done = workspace.run(*arguments)
    assert (done.code, done.stdout, message in done.stderr, "Hint: " in done.stderr) == (2, "", True, True), done


def test_a_dry_run_of_ingest_changes_nothing(workspace: Workspace) -> None:
    workspace.write(docs__a=b"1", docs__draft=b"2")
    (workspace.folder / "docs" / "torn.pdf").touch()
    done = workspace.run("docs", "--exclude", "draft*", "--dry-run", INGOT_SERVER_URL="http://127.0.0.1:9")
    assert (done.code, done.stdout.split()) == (2, ["pdf", "10", "B", "docs/a.pdf"])
    assert "Skipped: 1 " in done.stderr
    assert "docs/torn.pdf" in done.stderr
    assert workspace.lines("docs/a.pdf", "--dry-run") == [{"path": "docs/a.pdf", "type": "pdf", "size": 10}]


def test_a_wrong_token_is_reported_before_any_upload(workspace: Workspace) -> None:
    workspace.write(a=b"1")
    done = workspace.run("a.pdf", INGOT_TOKEN="ingot_" + "a" * 60)
    assert (done.code, done.stdout, "INGOT_TOKEN" in done.stderr) == (7, "", True)


def test_ingest_warns_of_a_type_without_workers(workspace: Workspace) -> None:
    workspace.write(a=b"1", b=b"2")
    done = workspace.run("a.pdf", "b.pdf", "--type", "embed")
    assert done.stderr.count("ingot worker --handlers embed") == 1
    custom_type = workspace.run("a.pdf", "--type", "mine", "--wait", "--timeout", "1s")
    assert (custom_type.code, "ingot worker --app" in custom_type.stderr, "queued" in custom_type.stderr) == (
        9,
        True,
        True,
    )
    assert "online" not in workspace.run("a.pdf", "--wait").stderr


def test_a_quota_reached_during_ingest_fails_that_document(workspace: Workspace) -> None:
    workspace.write(docs__a=b"small", docs__c=b"small too")
    (workspace.folder / "docs" / "b.pdf").write_bytes(LARGE)
    token = workspace.shell.json("tokens", "create", "the shop", "--grant", "*", "--limit", "quota_bytes=100000")
    (workspace.folder / "shop.token").write_text(token["token"], encoding="utf-8")
    lines = workspace.lines("docs", "--token-file", "shop.token", code=5)
    assert [(line["error"] or {}).get("code") for line in lines] == [None, "quota_exceeded", None]


def test_ingest_shows_progress_on_a_terminal(workspace: Workspace) -> None:
    workspace.write(docs__a=b"1")
    (workspace.folder / "docs" / "large.pdf").write_bytes(LARGE)
    output, code = workspace.shell.on_terminal("ingest", "docs", "--wait")
    assert code == 0
    for label in ("hashing", "sending", "converting", "2 of 2"):
        assert label in output


def test_jobs_submitted_before_ctrl_c_stay(workspace: Workspace) -> None:
    workspace.write(docs__a=b"waits", docs__b=b"1")

    def submitted() -> list[Any]:
        jobs = list(workspace.deploy.client.jobs(tag="stopped"))
        wait_until_running = [job for job in jobs if not job.finished]
        return (
            wait_until_running
            if (len(jobs), len(wait_until_running)) == (2, 1) and wait_until_running[0].progress
            else []
        )

    with workspace.shell.start("ingest", "docs", "--wait", "--tag", "stopped", "--json") as process:
        until(submitted)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert (process.returncode, "same command" in stderr, "Traceback" in stderr) == (130, True, False)
    assert [json.loads(line)["path"] for line in stdout.splitlines()] in ([], ["docs/b.pdf"])
    (waiting,) = (job for job in workspace.deploy.client.jobs(tag="stopped") if not job.finished)
    waiting.cancel()


def test_ingest_reuses_finished_jobs_unless_forced(workspace: Workspace) -> None:
    (workspace.folder / "scan.png").write_bytes(b"\x89PNG\r\n\x1a\n done once")
    (first,) = workspace.lines("scan.png", "--output", "out")
    (again,) = workspace.lines("scan.png", "--output", "out")
    assert (first["reused"], again["reused"], again["job_id"]) == (False, True, first["job_id"])
    assert workspace.run("scan.png", "--wait").stdout.startswith("already done")
    (forced,) = workspace.lines("scan.png", "--wait", "--force")
    assert (forced["reused"], forced["job_id"] != first["job_id"]) == (False, True)


# -- interruptions --------------------------------------------------------------------------------------------


def test_a_lost_response_creates_no_second_job(workspace: Workspace) -> None:
    workspace.write(docs__a=b"1", docs__b=b"2", docs__c=b"3")
    with lossy_proxy(workspace.deploy.url, b"POST /api/v1/jobs ") as proxy:
        lines = workspace.lines("docs", "--tag", "lost", "--server", proxy.url)
        assert proxy.matching_requests > 1
    jobs = {job.id: job.data.read("metadata")["path"] for job in workspace.deploy.client.jobs(tag="lost")}
    assert sorted(jobs.values()) == ["a.pdf", "b.pdf", "c.pdf"]
    assert {line["job_id"] for line in lines} == jobs.keys()


def test_ingest_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with deploy(tmp_path) as deployment:
        workspace = Workspace(tmp_path, deployment)
        workspace.write(**{f"docs__{n:03}": str(n).encode() for n in range(200)})
        with workspace.shell.start("ingest", "docs") as process:
            until(lambda: len(list(deployment.client.jobs(limit=20))) == 20)
            deployment.server.kill()
            deployment.start_server()
            stdout, _ = process.communicate(timeout=50)
        assert (process.returncode, len(stdout.splitlines())) == (0, 200)
        jobs = [job.data for job in deployment.client.jobs()]
        assert {job.status.value for job in jobs} == {"queued"}
        assert sorted(job.read("metadata")["path"] for job in jobs) == [f"{n:03}.pdf" for n in range(200)]
        workspace.shell.close()


class ChangingStep(StepBar):
    """A progress bar that changes a file after it was hashed."""

    def __init__(self, path: Path) -> None:
        super().__init__(None, "hashing", 0, str)
        self._path = path

    def item(self, total: int) -> ItemProgress:
        path = self._path

        class ChangingProgress(ItemProgress):
            def __call__(self, done: int, total: int) -> None:
                if done == total:
                    with path.open("r+b") as file:
                        file.seek(MIB)
                        file.write(b"changed")

        return ChangingProgress(self, total)


def test_a_file_that_changes_during_its_upload_fails(workspace: Workspace) -> None:
    path = workspace.folder / "large.pdf"
    path.write_bytes(b"%PDF-1.7\n" + Random(11).randbytes(3 * MIB))
    ended: list[tuple[IngestOutcome, IngotError | None]] = []
    no_step = StepBar(None, "", 0, str)
    steps = IngestBars(ChangingStep(path), no_step, no_step)
    jobs = find_documents([path], DocumentFilter(), print)
    token = workspace.deploy.headers["authorization"].removeprefix("Bearer ")
    with Client(workspace.deploy.url, token=token) as client:
        options = IngestOptions(wait=True)
        IngestPipeline(
            client, options, steps, report=lambda *report: ended.append(report), print_message=pytest.fail
        ).run(jobs.documents)
    ((outcome, error),) = ended
    assert error is not None
    assert (error.code, outcome.job_id) == ("wrong_digest", None)
