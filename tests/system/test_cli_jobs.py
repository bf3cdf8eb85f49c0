"""The commands of `ingot jobs`."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ingot.kernel.ids import new_id
from tests.system.programs import INGOT
from tests.system.shell import Shell, open_shell
from tests.waiting import SECONDS_MAX


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        yield shell


@contextmanager
def in_background(work: Callable[[], None]) -> Iterator[None]:
    """Run a function in a thread during the block, and raise its errors at the end."""
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            wrong.append(error)

    other = threading.Thread(target=run)
    other.start()
    yield
    other.join()
    assert not wrong, wrong


# -- submit -------------------------------------------------------------------------------------------------


def test_submit_sets_every_option_of_a_job(shell: Shell) -> None:
    parent = shell.submit("all", run_at="2099-01-01T00:00:00Z")
    written = shell.ok(
        "jobs", "submit", "all", "--payload", '{"n": 1.50}', "--priority", "high", "--tag", "a", "--tag", "b",
        "--key", "k", "--dedupe-key", "d", "--max-attempts", "2", "--metadata", "[1]", "--after", parent,
        "--on-dead", "run", "--batch", "all", "--correlation-id", "c", "--delay", "1h",
    )  # fmt: skip
    job = shell.job(written.strip())
    assert written == f"{job['id']}\n", "more than the ID was printed"
    expected = {
        "type": "all", "status": "blocked", "priority": 2, "tags": ["a", "b"], "idempotency_key": "k",
        "dedupe_key": "d", "max_attempts": 2, "metadata": [1], "after": [parent], "on_dead": "run", "batch": "all",
        "correlation_id": "c",
    }  # fmt: skip
    assert {name: job[name] for name in expected} == expected
    assert '"payload":{"n": 1.50}' in shell.http.get(f"/jobs/{job['id']}").text, "the payload was reformatted"


def test_submit_reads_the_payload_from_a_file_or_stdin(shell: Shell) -> None:
    (shell.folder / "payload.json").write_text('{"from": "a file"}\n', encoding="utf-8")
    made = shell.json("jobs", "submit", "filed", "--payload-file", "payload.json", "--priority", "5")
    assert (made["payload"], made["priority"], made["status"]) == ({"from": "a file"}, 5, "queued")
    assert shell.json("jobs", "submit", "filed", "--payload-file", "-", stdin_text='"stdin"')["payload"] == "stdin"


def test_submit_of_the_same_file_returns_the_existing_job_unless_forced(shell: Shell) -> None:
    (shell.folder / "same.png").write_bytes(b"a picture")
    first, again, forced = (
        shell.run("jobs", "submit", "image", "--file", "same.png", *more) for more in ((), (), ("--force",))
    )
    assert first.stdout == again.stdout != forced.stdout
    assert [("--force" in done.stderr) for done in (first, again, forced)] == [False, True, False]


def test_submit_with_wait_prints_the_result(shell: Shell) -> None:
    def work() -> None:
        shell.update_job(shell.claim("waited"), "complete", result={"hello": "Ada"})

    with in_background(work):
        done = shell.run("jobs", "submit", "waited", "--wait", "--timeout", "15s")
    assert (done.code, json.loads(done.stdout)) == (0, {"hello": "Ada"})
    assert "is queued." in done.stderr


def test_submit_with_wait_exits_with_8_for_a_dead_job_and_9_after_a_timeout(shell: Shell) -> None:
    def work() -> None:
        shell.update_job(shell.claim("broken"), "fail", error="out of \x1b[31mpaper", retry=False)

    with in_background(work):
        done = shell.run("jobs", "submit", "broken", "--wait", "--json")
    assert (done.code, json.loads(done.stdout)["status"]) == (8, "dead")
    assert "is dead: out of \ufffd[31mpaper" in done.stderr, "control characters were printed"
    late = shell.run("jobs", "submit", "late", "--wait", "--timeout", "200ms")
    assert (late.code, late.stdout) == (9, "")
    assert "not finished yet: No worker has requested jobs of type late so far." in late.stderr


def test_submit_with_wait_prints_why_the_job_does_not_run(shell: Shell) -> None:
    with shell.start("jobs", "submit", "later", "--run-at", "2099-01-01T00:00:00Z", "--wait") as waiting:
        assert waiting.stderr is not None
        assert waiting.stderr.readline().endswith(" is queued.\n")
        assert "is queued: The job is scheduled for 2099-01-01T00:00:00Z." in waiting.stderr.readline()


def test_submit_from_a_file_of_payloads_creates_each_job_once(shell: Shell) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1201))
    (shell.folder / "payloads.jsonl").write_text(f"{lines}\n", encoding="utf-8")
    arguments = (
        "jobs",
        "submit",
        "many",
        "--from",
        "payloads.jsonl",
        "--batch",
        "many",
        "--key",
        "run-1",
        "--tag",
        "t",
    )
    done = shell.run(*arguments)
    assert (done.code, len(set(done.stdout.split()))) == (0, 1201)
    assert "1201 jobs were submitted." in done.stderr
    assert shell.ok(*arguments) == done.stdout, "the second run created jobs"
    assert shell.http.get("/batches/many").json()["total"] == 1201
    one = shell.job(done.stdout.split()[7])
    assert (one["payload"], one["idempotency_key"], one["tags"]) == ({"n": 7}, "run-1:8", ["t"])


def create_tenant(shell: Shell, slug: str, **limits: float) -> None:
    response = shell.http.post("/admin/tenants", json={"slug": slug, "limits": limits})
    assert response.status_code == 201, response.text


def test_submit_waits_when_the_tenant_has_reached_its_rate(shell: Shell) -> None:
    create_tenant(shell, "slow", rate=0.3, burst=1)
    for _ in range(2):  # The second job has to wait for 3.3 seconds, longer than the retries of one request.
        shell.ok("jobs", "submit", "slow", "--tenant", "slow")


def test_submit_from_a_file_sends_fewer_jobs_at_once_if_a_limit_requires_it(shell: Shell) -> None:
    create_tenant(shell, "bursts", rate=1000, burst=30)
    (shell.folder / "bursts.jsonl").write_text("".join(f"{n}\n" for n in range(200)), encoding="utf-8")
    arguments = ("jobs", "submit", "x", "--from", "bursts.jsonl", "--key", "bursts", "--tenant", "bursts")
    ids = shell.ok(*arguments)
    assert len(set(ids.split())) == 200
    assert shell.ok(*arguments) == ids, "the idempotency keys changed"


def test_submit_from_a_file_of_jobs_uses_the_options_of_each_line(shell: Shell) -> None:
    stdin_text = '{"type": "one", "payload": 1, "priority": "low"}\n{"type": "two", "delay": "1h", "tags": ["own"]}\n'
    made = [
        json.loads(line)
        for line in shell.ok(
            "jobs", "submit", "--from", "-", "--tag", "for-all", "--json", stdin_text=stdin_text
        ).splitlines()
    ]
    message = [(job["type"], job["priority"], job["tags"]) for job in made]
    assert message == [("one", 4, ["for-all"]), ("two", 3, ["own"])]


@pytest.mark.parametrize(
    ("arguments", "stdin_text", "message"),
    [
        (["submit"], "", "job type"),
        (["submit", "x", "--payload", "{name: Ada}"], "", "--payload"),
        (["submit", "x", "--payload-file", "nowhere.json"], "", "nowhere.json"),
        (["submit", "x", "--priority", "urgent"], "", "'urgent'"),
        (["submit", "x", "--priority", "9"], "", "priority"),
        (["submit", "x", "--delay", "soon"], "", "'soon'"),
        (["submit", "x", "--run-at", "2026-01-01T00:00:00"], "", "--run-at"),
        (["submit", "x", "--from", "-", "--wait"], "1\n", "--from and --wait"),
        (["submit", "x", "--from", "-"], "1\n{\n", "line 2"),
        (["submit", "--from", "-"], "[1]\n", "line 1"),
        (["submit", "--from", "-"], '{"payload": 1}\n', "line 1: a job has no type"),
        (["cancel"], "", "--all"),
        (["cancel", "--status", "sleeping"], "", "--status"),
        (["retry", "--status", "running", "--yes"], "", "running"),
        (["list", "--created-after", "yesterday"], "", "'yesterday'"),
    ],
)
def test_invalid_arguments_of_jobs_commands_exit_with_2(
    shell: Shell, arguments: list[str], stdin_text: str, message: str
) -> None:
    done = shell.run("jobs", *arguments, stdin_text=stdin_text)
    assert (done.code, done.stdout) == (2, "")
    assert message in done.stderr


# -- reading ------------------------------------------------------------------------------------------------


def test_jobs_are_listed_as_a_table_or_as_json(shell: Shell) -> None:
    dead = shell.submit("listed", payload=1, tags=["x"])
    shell.update_job(shell.claim("listed"), "fail", error="no\nmore", retry=False)
    waits = shell.submit("listed", tags=["x"], run_at="2099-01-01T00:00:00Z", priority=1)
    table = shell.ok("jobs", "list", "--type", "listed").splitlines()
    assert table[0].split() == ["ID", "TYPE", "STATUS", "PRIORITY", "ATTEMPTS", "CREATED", "DETAIL"]
    assert [line.split()[0] for line in table[1:]] == [waits, dead], "the order or the IDs are wrong"
    assert "scheduled in " in table[1]
    assert table[2].endswith("no")
    assert "\x1b" not in "".join(table), "colors were printed without a terminal"
    assert [job["id"] for job in shell.json("jobs", "list", "--tag", "x", "--status", "dead")] == [dead]


def test_a_narrow_terminal_shows_the_important_columns_in_full(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shell.submit("narrow", tags=["n"])
    monkeypatch.setitem(shell.environment, "COLUMNS", "80")
    monkeypatch.setitem(shell.environment, "NO_COLOR", "1")
    seen, _ = shell.on_terminal("jobs", "list", "--tag", "n")
    heading, row = re.sub(r"\x1b\[[0-9;]*m", "", seen).splitlines()
    assert heading.split() == ["ID", "TYPE", "STATUS", "CREATED", "DETAIL"]
    assert row.split()[:3] == [made, "narrow", "queued"]
    assert len(row) <= 80


def test_a_truncated_list_names_the_option_for_all_jobs(shell: Shell) -> None:
    for _ in range(2):
        shell.submit("cut", tags=["y"])
    assert shell.json("jobs", "list", "--type", "cut", "--created-before", "1h") == []
    cut = shell.run("jobs", "list", "--tag", "y", "--limit", "1")
    assert (len(cut.stdout.splitlines()), "--all" in cut.stderr) == (2, True)
    assert len(shell.json("jobs", "list", "--tag", "y", "--limit", "1", "--all")) == 2


def test_show_logs_and_explain_describe_a_job(shell: Shell) -> None:
    made = shell.submit("shown", payload={"name": "Ada"})
    job = shell.claim("shown")
    shell.update_job(job, "heartbeat", log="first line\n", progress={"percent": 40, "stage": "resizing"})
    shown = shell.ok("jobs", "show", made)
    for part in (made, "40 % resizing", '"name": "Ada"', "ATTEMPT", "press"):
        assert part in shown
    assert shell.json("jobs", "show", made)["worker_id"] == "press"
    assert shell.ok("jobs", "logs", made) == "first line\n"
    assert shell.json("jobs", "logs", made, "--attempt", "1")["text"] == "first line\n"
    with shell.start("jobs", "logs", made, "--follow") as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "first line\n"
        shell.update_job(job, "heartbeat", log="second line\n")
        assert following.stdout.readline() == "second line\n", "the line was not printed at once"
        shell.update_job(job, "complete", result=None)
        assert following.stdout.read() == ""
        assert following.wait(timeout=45) == 0
    waits = shell.submit("shown", run_at="2099-01-01T00:00:00Z")
    assert "2099" in shell.ok("jobs", "explain", waits)
    assert shell.json("jobs", "explain", waits)["status"] == "queued"


def test_watch_follows_jobs_until_they_finish(shell: Shell) -> None:
    ids = [shell.submit("watched"), shell.submit("watched")]

    def work() -> None:
        for percent in (10, 100):
            job = shell.claim("watched")
            shell.update_job(job, "heartbeat", progress={"percent": percent, "stage": "at it"})
            shell.update_job(job, "complete", result=percent)

    with shell.start("jobs", "watch", *ids, "--json") as watching:
        assert watching.stdout is not None
        first = json.loads(watching.stdout.readline())
        assert first["status"] == "queued"
        work()
        last = {job["id"]: job for job in map(json.loads, watching.stdout)}
        assert watching.wait(timeout=45) == 0
    assert {job["status"] for job in last.values()} == {"succeeded"}
    assert set(last) == set(ids)
    assert shell.ok("jobs", "watch", ids[0]) == f"{ids[0]} watched succeeded\n"


def test_watch_follows_a_batch_until_it_finishes(shell: Shell) -> None:
    for _ in range(2):
        shell.submit("batched", batch="b 1")
    shell.update_job(shell.claim("batched"), "complete")
    shell.update_job(shell.claim("batched"), "fail", error="no", retry=False)
    done = shell.run("jobs", "watch", "--batch", "b 1")
    assert (done.code, done.stdout) == (8, "2 of 2 finished, 1 dead\n")
    assert "1 of 2 jobs of the batch did not succeed" in done.stderr


# -- changing -----------------------------------------------------------------------------------------------


def test_jobs_can_be_canceled_and_retried_by_id(shell: Shell) -> None:
    ids = [shell.submit("steered"), shell.submit("steered")]
    assert [job["status"] for job in shell.json("jobs", "cancel", *ids)] == ["canceled", "canceled"]
    again = shell.json("jobs", "retry", ids[0], "--priority", "critical")
    assert [(job["status"], job["priority"]) for job in again] == [("queued", 1)]
    missing = new_id()
    done = shell.run("jobs", "cancel", missing, ids[0])
    assert (done.code, done.stdout.split()[-3:]) == (3, [ids[0], "steered", "canceled"]), (
        "the second job was not canceled"
    )
    assert missing in done.stderr
    assert shell.run("jobs", "cancel", missing).stdout == "", "an empty table was printed"
    assert shell.run("jobs", "retry", "x").code == 3
    shell.ok("jobs", "retry", ids[0])
    running = shell.run("jobs", "retry", ids[0])
    assert (running.code, "Hint:" in running.stderr) == (4, True)


def test_a_bulk_action_previews_its_jobs_and_needs_confirmation(shell: Shell) -> None:
    ids = [shell.submit("filtered") for _ in range(7)]

    def statuses() -> list[str]:
        return [shell.job(job_id)["status"] for job_id in ids]

    dry = shell.json("jobs", "cancel", "--type", "filtered", "--dry-run")
    assert dry == {"action": "cancel", "dry_run": True, "matched": 7, "changed": 7, "failed": []}
    refused = shell.run("jobs", "cancel", "--type", "filtered")
    assert refused.code == 2, "it did not ask for confirmation"
    assert "7 jobs would be canceled." in refused.stderr
    assert "--yes" in refused.stderr
    assert refused.stdout.count("filtered") == 5, "the preview does not show five jobs"
    seen, code = shell.on_terminal("jobs", "cancel", "--type", "filtered", answer="n")
    assert (code, "Cancel 7 jobs?" in seen, "Nothing was changed." in seen) == (1, True, True)
    assert statuses() == ["queued"] * 7
    seen, code = shell.on_terminal("jobs", "cancel", "--type", "filtered", answer="y")
    assert (code, "7 jobs were canceled." in seen) == (0, True)
    assert statuses() == ["canceled"] * 7
    assert shell.run("jobs", "cancel", "--type", "filtered").stderr == "0 jobs would be canceled.\n"
    done = shell.json("jobs", "retry", "--type", "filtered", "--status", "canceled", "--yes")
    assert (done["changed"], done["dry_run"]) == (7, False)
    assert statuses() == ["queued"] * 7


def test_a_bulk_retry_lists_the_jobs_that_were_refused(shell: Shell) -> None:
    first = shell.submit("held", dedupe_key="held")
    shell.ok("jobs", "cancel", first)
    shell.submit("held", dedupe_key="held")
    done = shell.run("jobs", "retry", "--type", "held", "--status", "canceled", "--yes")
    assert (done.code, f"{first}: duplicate_job" in done.stderr) == (4, True)


def test_a_terminal_shows_bars_and_escapes_control_characters(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shell.submit("seen", tags=["s"])
    shell.update_job(shell.claim("seen"), "fail", error="\x1b]0;owned\x07 no", retry=False)
    seen, code = shell.on_terminal("jobs", "watch", made)
    assert (code, made in seen, "━" in seen) == (8, True, True)
    listed, _ = shell.on_terminal("jobs", "list", "--tag", "s")
    assert "\ufffd]0;owned" in listed
    for text in (seen, listed):
        assert "\x1b]0;owned" not in text
    monkeypatch.setitem(shell.environment, "NO_COLOR", "1")
    without, _ = shell.on_terminal("jobs", "list", "--tag", "s")
    assert ("\x1b[31m" in listed, "\x1b[31m" in without) == (True, False)


def test_json_output_is_one_line_with_escaped_control_characters(shell: Shell) -> None:
    made = shell.ok("jobs", "submit", "odd", "--payload", '{\n"a": "\u009b31m \u202e"\n}').strip()
    shell.update_job(shell.claim("odd"), "complete")
    (line,) = shell.ok("jobs", "watch", made, "--json").splitlines()
    expected = {"a": "\u009b31m \u202e"}
    assert json.loads(line)["payload"] == expected
    seen, _ = shell.on_terminal("jobs", "show", made, "--json")
    assert not {"\u009b", "\u202e"} & set(seen)
    assert json.loads(seen)["payload"] == expected


def test_watch_without_ids_shows_running_jobs_until_it_is_interrupted(shell: Shell) -> None:
    made = shell.submit("shift")
    job = shell.claim("shift")
    with shell.start("jobs", "watch", "--json") as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        seen: dict[str, Any] = json.loads(watching.stdout.readline())
        watching.send_signal(2)
        assert watching.wait(timeout=45) == 130
        assert watching.stderr.read() == "", "Ctrl-C printed an error"
    shell.update_job(job, "complete")
    assert made in [running["id"] for running in seen["running"]]


def test_output_that_cannot_be_written_is_an_error(shell: Shell) -> None:
    script = f"{INGOT} jobs list --type none > /dev/full; echo $?; {INGOT} jobs list --type none >&-; echo $?"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n0\n"
    assert done.stderr == "ingot: the output cannot be written: No space left on device\n"


def test_a_closed_pipe_ends_the_command_silently(shell: Shell) -> None:
    shell.ok("jobs", "submit", "piped", "--from", "-", stdin_text='"a payload of some length"\n' * 400)
    script = f"{INGOT} jobs list --type piped --all --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=shell.folder, env=shell.environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[141\n", "")
