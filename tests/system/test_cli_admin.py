"""The commands for operators: `ingot workers`, `secrets`, `tokens`, `tenants` and `events`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest

from tests.system.programs import run_ingot, served
from tests.system.shell import Shell, open_shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        yield shell


# -- workers ------------------------------------------------------------------------------------------------


def test_workers_can_be_listed_drained_and_removed(shell: Shell) -> None:
    made = shell.http.post("/workers", json={"id": "press/1", "types": ["print"], "hostname": "cellar"})
    assert made.status_code == 201
    table = shell.ok("workers", "list").splitlines()
    assert [line.split()[:4] for line in table] == [
        ["ID", "STATUS", "TYPES", "HOST"],
        ["press/1", "online", "print", "cellar"],
    ]
    assert "cellar" in shell.ok("workers", "show", "press/1")
    assert shell.json("workers", "drain", "press/1")["status"] == "draining"
    forgotten = shell.run("workers", "remove", "press/1")
    assert (forgotten.code, forgotten.stdout, "press/1" in forgotten.stderr) == (0, "", True)
    assert shell.json("workers", "list") == []
    gone = shell.run("workers", "show", "press/1")
    assert (gone.code, "`ingot workers list`" in gone.stderr) == (3, True)


def test_a_new_worker_credential_is_printed_once_as_settings(shell: Shell) -> None:
    made = shell.run("workers", "credentials", "create", "press", "--type", "print", "--type", "fold")
    settings = dict(line.split("=", 1) for line in made.stdout.splitlines())
    assert (made.code, settings["INGOT_WORKER_ID"], "only once" in made.stderr) == (0, "press", True)
    assert settings["INGOT_WORKER_SECRET"].startswith("ingotw_")
    again = shell.json("workers", "credentials", "regenerate", "press")
    assert again["secret"] != settings["INGOT_WORKER_SECRET"]
    assert shell.json("workers", "credentials", "disable", "press")["enabled"] is False
    assert shell.json("workers", "credentials", "enable", "press")["enabled"] is True
    listed = shell.ok("workers", "credentials", "list")
    assert "print, fold" in listed
    assert again["secret"] not in listed
    assert shell.run("workers", "credentials", "create", "press").code == 4


# -- secrets ------------------------------------------------------------------------------------------------


def test_a_secret_is_read_from_stdin_or_a_file_and_never_printed(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("first line\nsecond line\n")
    piped = shell.run("secrets", "put", "mail", stdin_text="correct horse\n")
    assert (piped.code, piped.stdout, "version 1" in piped.stderr) == (0, "", True)
    assert shell.json("secrets", "put", "tls", "--file", str(tmp_path / "key.pem"))["version"] == 1
    assert shell.run("secrets", "put", "mail", "--if-version", "7", stdin_text="other").code == 4
    assert shell.run("secrets", "put", "a b", stdin_text="x").code == 2
    assert [line.split()[:2] for line in shell.ok("secrets", "list").splitlines()] == [
        ["NAME", "VERSION"],
        ["mail", "1"],
        ["tls", "1"],
    ]
    shown = shell.ok("secrets", "get", "mail") + shell.ok("secrets", "list", "--prefix", "m", "--json")
    assert "key_id" in shown
    assert "horse" not in shown
    assert shell.json("secrets", "rotate-key")["unreadable"] == 0
    assert shell.run("secrets", "delete", "tls").code == 0
    assert shell.run("secrets", "get", "tls").code == 3


def test_rotate_key_fails_while_the_key_of_a_secret_is_missing(tmp_path: Path) -> None:
    for key, code in ((token_hex(32), 0), (token_hex(32), 1)):
        with served(tmp_path, env={"INGOT_SECRET_KEY": key}) as (_, url):
            environment = {"INGOT_SERVER_URL": url, "INGOT_DATA": str(tmp_path)}
            if code == 0:
                assert run_ingot("secrets", "put", "mail", env=environment, stdin_text="horse").code == 0
            assert run_ingot("secrets", "rotate-key", env=environment).code == code


# -- tokens -------------------------------------------------------------------------------------------------


def test_a_token_is_printed_once_grants_access_and_can_be_revoked(shell: Shell) -> None:
    made = shell.run(
        "tokens", "create", "the shop", "--grant", "jobs.create:jobs/mail", "--grant", "jobs.read", "--expires", "90d"
    )
    token = made.stdout.strip()
    assert (made.code, made.stdout.count("\n"), token.startswith("ingot_")) == (0, 1, True)
    (shell.folder / "shop.token").write_text(made.stdout, encoding="utf-8")
    own = ("--token-file", "shop.token")
    assert shell.run("jobs", "submit", "mail", *own).code == 0
    refused = shell.run("jobs", "submit", "print", *own)
    assert (refused.code, "no grant for jobs.create" in refused.stderr) == (7, True)
    (listed,) = shell.json("tokens", "list")
    assert [listed["description"], listed["grants"][0]["resource"], listed["revoked_at"]] == [
        "the shop",
        "jobs/mail",
        None,
    ]
    table = shell.ok("tokens", "list")
    assert "jobs.create:jobs/mail, jobs.read" in table
    assert "in 90 d" in table
    assert token not in table
    shell.ok("tokens", "revoke", listed["id"])
    ended = shell.run("jobs", "list", *own)
    assert (ended.code, token not in ended.stderr, "--token-file" in ended.stderr) == (7, True, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["create", "x"], 2, "--grant"),
        (["create", "x", "--grant", "jobs.fly"], 2, "no action 'jobs.fly'"),
        (["create", "x", "--grant", "*", "--expires", "2020-01-01T00:00:00Z"], 2, "expire"),
        (["revoke", "a/../b"], 3, "no token"),
    ],
)
def test_invalid_token_arguments_are_refused(shell: Shell, arguments: list[str], code: int, message: str) -> None:
    done = shell.run("tokens", *arguments)
    assert (done.code, done.stdout, message in done.stderr) == (code, "", True), done


# -- tenants ------------------------------------------------------------------------------------------------


def test_a_tenant_can_be_created_changed_and_used(shell: Shell) -> None:
    arguments = ("--weight", "2", "--limit", "max_running_jobs=10", "--limit", "rate=2.5", "--group", "staff=member")
    made = shell.json("tenants", "create", "acme", *arguments)
    assert (made["weight"], made["limits"], made["groups"]) == (
        2,
        {"max_running_jobs": 10, "rate": 2.5},
        {"staff": "member"},
    )
    changed = shell.json(
        "tenants", "change", "acme", "--limit", "rate=none", "--limit", "burst=4", "--group", "ops=admin"
    )
    assert changed["limits"] == {"max_running_jobs": 10, "burst": 4}, "a limit that was not named changed"
    assert changed["groups"] == {"staff": "member", "ops": "admin"}
    shown = shell.ok("tenants", "show", "acme")
    assert "max_running_jobs = 10" in shown
    assert "acme" in shell.ok("tenants", "list")
    job = shell.json("jobs", "submit", "print", "--tenant", "acme")
    assert job["tenant"] == made["id"]
    assert shell.run("jobs", "show", job["id"]).code == 3, "another tenant sees the job"
    refused = shell.run("tenants", "remove", "acme")
    assert (refused.code, "1 queued" in refused.stderr, "--yes" in refused.stderr) == (2, True, True)


def test_an_invitation_needs_an_email_address_or_an_id(shell: Shell) -> None:
    refused = shell.run("members", "invite", "notanemail", "--role", "member")
    assert refused.code == 2
    assert "'notanemail' is not an email address" in refused.stderr


def test_members_are_invited_changed_and_removed(shell: Shell) -> None:
    invited = shell.run("members", "invite", "Ada@example.com", "--role", "member")
    assert (invited.code, "Invited" in invited.stderr) == (0, True)
    (member,) = shell.json("members", "list")
    assert (member["email"], member["role"], member["invited"]) == ("ada@example.com", "member", True)
    assert shell.json("members", "change", member["id"], "--role", "viewer")["role"] == "viewer"
    assert "invited" in shell.ok("members", "list")
    wrong = shell.run("members", "invite", "bob@example.com", "--role", "owner")
    assert (wrong.code, "admin" in wrong.stderr) == (2, True)
    assert shell.json("members", "invite", member["id"], "--role", "viewer")["user"] == member["id"]
    for listed in shell.json("members", "list"):
        shell.ok("members", "remove", listed["id"])
    assert shell.json("members", "list") == []
    assert shell.run("members", "remove", member["id"]).code == 3


def test_a_tenant_is_removed_only_after_confirmation(shell: Shell) -> None:
    shell.ok("tenants", "create", "doomed")
    kept, code = shell.on_terminal("tenants", "remove", "doomed", answer="n")
    assert (code, "Remove tenant doomed?" in kept) == (1, True)
    assert shell.json("tenants", "show", "doomed")["slug"] == "doomed"
    gone, code = shell.on_terminal("tenants", "remove", "doomed", answer="y")
    assert (code, "Removed tenant doomed" in gone) == (0, True)
    missing = shell.run("tenants", "show", "doomed")
    assert (missing.code, "ingot tenants list" in missing.stderr) == (3, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["change", "default"], "--weight"),
        (["change", "default", "--limit", "speed=1"], "'speed'"),
        (["change", "default", "--limit", "rate"], "'rate'"),
        (["change", "default", "--limit", "burst=many"], "'many'"),
        (["create", "Not A Slug"], "slug"),
    ],
)
def test_invalid_tenant_arguments_are_refused(shell: Shell, arguments: list[str], message: str) -> None:
    done = shell.run("tenants", *arguments)
    assert (done.code, done.stdout, message in done.stderr) == (2, "", True), done


# -- events -------------------------------------------------------------------------------------------------


def test_events_can_be_published_listed_and_followed(shell: Shell) -> None:
    first = shell.ok("events", "publish", "order.placed", "--data", '{"order": 7}', "--key", "order-7").strip()
    assert shell.json(
        "events", "publish", "order.placed", "--data-file", "-", "--key", "order-7", stdin_text='{"order": 7}'
    ) == {"id": first}, "the event was published twice"
    shell.ok("events", "publish", "order.paid")
    listed = shell.json("events", "list", "--name", "order")
    assert [(event["name"], event["data"]) for event in listed] == [
        ("order.placed", {"order": 7}),
        ("order.paid", None),
    ]
    assert shell.json("events", "list", "--name", "ord") == [], "a prefix of a segment matched"
    cut = shell.run("events", "list", "--name", "order", "--limit", "1")
    assert (cut.stdout.count("order.placed"), f"--after {first}" in cut.stderr) == (1, True)
    (paid,) = shell.lines("events", "tail", "--name", "order", "--after", first, "--limit", "1")
    assert paid["name"] == "order.paid"
    bad = shell.run("events", "publish", "order.placed", "--data", "{")
    assert (bad.code, "--data" in bad.stderr) == (2, True)


def test_events_tail_prints_new_events_until_it_is_interrupted(shell: Shell) -> None:
    before = shell.ok("events", "publish", "bell.first").strip()
    with shell.start("events", "tail", "--name", "bell", "--after", before, "--json") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        for name in ("bell.second", "bell.third"):
            assert shell.http.post("/events", json={"name": name}).status_code == 201
            assert json.loads(tail.stdout.readline())["name"] == name
        tail.send_signal(2)
        assert tail.wait(timeout=45) == 130
        assert tail.stderr.read() == ""
