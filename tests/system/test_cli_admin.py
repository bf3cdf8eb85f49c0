"""`ingot workers`, `tokens`, `tenants` and `events` as those who run the place type them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.shell import Shell, shell


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with shell(tmp_path_factory.mktemp("place")) as made:
        yield made


# -- workers ------------------------------------------------------------------------------------------------


def test_workers_can_be_listed_drained_and_removed(place: Shell) -> None:
    made = place.http.post("/workers", json={"id": "press/1", "types": ["print"], "hostname": "cellar"})
    assert made.status_code == 201
    table = place.ok("workers", "list").splitlines()
    assert [line.split()[:4] for line in table] == [
        ["ID", "STATUS", "TYPES", "HOST"],
        ["press/1", "online", "print", "cellar"],
    ]
    assert "cellar" in place.ok("workers", "show", "press/1")
    assert place.json("workers", "drain", "press/1")["status"] == "draining"
    forgotten = place.run("workers", "remove", "press/1")
    assert (forgotten.code, forgotten.stdout, "press/1" in forgotten.stderr) == (0, "", True)
    assert place.json("workers", "list") == []
    gone = place.run("workers", "show", "press/1")
    assert (gone.code, "`ingot workers list`" in gone.stderr) == (3, True)


def test_a_new_worker_credential_is_printed_once_as_settings(place: Shell) -> None:
    made = place.run("workers", "credentials", "create", "press", "--type", "print", "--type", "fold")
    settings = dict(line.split("=", 1) for line in made.stdout.splitlines())
    assert (made.code, settings["INGOT_WORKER_ID"], "only once" in made.stderr) == (0, "press", True)
    assert settings["INGOT_WORKER_SECRET"].startswith("ingotw_")
    again = place.json("workers", "credentials", "regenerate", "press")
    assert again["secret"] != settings["INGOT_WORKER_SECRET"]
    assert place.json("workers", "credentials", "disable", "press")["enabled"] is False
    assert place.json("workers", "credentials", "enable", "press")["enabled"] is True
    listed = place.ok("workers", "credentials", "list")
    assert "print, fold" in listed
    assert again["secret"] not in listed
    assert place.run("workers", "credentials", "create", "press").code == 4


# -- secrets ------------------------------------------------------------------------------------------------


def test_a_secret_is_read_from_stdin_or_a_file_and_never_printed(place: Shell, tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("first line\nsecond line\n")
    piped = place.run("secrets", "put", "mail", typed="correct horse\n")
    assert (piped.code, piped.stdout, "version 1" in piped.stderr) == (0, "", True)
    assert place.json("secrets", "put", "tls", "--file", str(tmp_path / "key.pem"))["version"] == 1
    assert place.run("secrets", "put", "mail", "--if-version", "7", typed="other").code == 4
    assert place.run("secrets", "put", "a b", typed="x").code == 2
    assert [line.split()[:2] for line in place.ok("secrets", "list").splitlines()] == [
        ["NAME", "VERSION"],
        ["mail", "1"],
        ["tls", "1"],
    ]
    shown = place.ok("secrets", "get", "mail") + place.ok("secrets", "list", "--prefix", "m", "--json")
    assert "key_id" in shown
    assert "horse" not in shown
    assert place.json("secrets", "rotate-key")["unreadable"] == 0
    assert place.run("secrets", "delete", "tls").code == 0
    assert place.run("secrets", "get", "tls").code == 3


# -- tokens -------------------------------------------------------------------------------------------------


def test_a_token_is_printed_once_grants_access_and_can_be_revoked(place: Shell) -> None:
    made = place.run(
        "tokens", "create", "the shop", "--grant", "jobs.create:jobs/mail", "--grant", "jobs.read", "--expires", "90d"
    )
    token = made.stdout.strip()
    assert (made.code, made.stdout.count("\n"), token.startswith("ingot_")) == (0, 1, True)
    (place.folder / "shop.token").write_text(made.stdout, encoding="utf-8")
    own = ("--token-file", "shop.token")
    assert place.run("jobs", "submit", "mail", *own).code == 0
    refused = place.run("jobs", "submit", "print", *own)
    assert (refused.code, "no grant for jobs.create" in refused.stderr) == (7, True)
    (listed,) = place.json("tokens", "list")
    assert [listed["description"], listed["grants"][0]["resource"], listed["revoked_at"]] == [
        "the shop",
        "jobs/mail",
        None,
    ]
    table = place.ok("tokens", "list")
    assert "jobs.create:jobs/mail, jobs.read" in table
    assert "in 90 d" in table
    assert token not in table
    place.ok("tokens", "revoke", listed["id"])
    ended = place.run("jobs", "list", *own)
    assert (ended.code, token not in ended.stderr, "--token-file" in ended.stderr) == (7, True, True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["create", "x"], 2, "--grant"),
        (["create", "x", "--grant", "jobs.fly"], 2, "no action 'jobs.fly'"),
        (["create", "x", "--grant", "*", "--expires", "2020-01-01T00:00:00Z"], 2, "expire"),
        (["revoke", "a/../b"], 3, "no token"),
    ],
)
def test_invalid_token_arguments_are_refused(place: Shell, words: list[str], code: int, said: str) -> None:
    done = place.run("tokens", *words)
    assert (done.code, done.stdout, said in done.stderr) == (code, "", True), done


# -- tenants ------------------------------------------------------------------------------------------------


def test_a_tenant_can_be_created_changed_and_used(place: Shell) -> None:
    words = ("--weight", "2", "--limit", "max_running_jobs=10", "--limit", "rate=2.5", "--group", "staff=member")
    made = place.json("tenants", "create", "acme", *words)
    assert (made["weight"], made["limits"], made["groups"]) == (
        2,
        {"max_running_jobs": 10, "rate": 2.5},
        {"staff": "member"},
    )
    changed = place.json(
        "tenants", "change", "acme", "--limit", "rate=none", "--limit", "burst=4", "--group", "ops=admin"
    )
    assert changed["limits"] == {"max_running_jobs": 10, "burst": 4}, "what is not named stays"
    assert changed["groups"] == {"staff": "member", "ops": "admin"}
    shown = place.ok("tenants", "show", "acme")
    assert "max_running_jobs = 10" in shown
    assert "acme" in place.ok("tenants", "list")
    job = place.json("jobs", "submit", "print", "--tenant", "acme")
    assert job["tenant"] == made["id"]
    assert place.run("jobs", "show", job["id"]).code == 3, "it is nobody else's"
    refused = place.run("tenants", "remove", "acme")
    assert (refused.code, "1 queued" in refused.stderr, "--yes" in refused.stderr) == (2, True, True)


def test_a_tenant_is_removed_only_after_confirmation(place: Shell) -> None:
    place.ok("tenants", "create", "doomed")
    kept, code = place.on_terminal("tenants", "remove", "doomed", answer="n")
    assert (code, "Remove tenant doomed?" in kept) == (1, True)
    assert place.json("tenants", "show", "doomed")["slug"] == "doomed"
    gone, code = place.on_terminal("tenants", "remove", "doomed", answer="y")
    assert (code, "Removed tenant doomed" in gone) == (0, True)
    missing = place.run("tenants", "show", "doomed")
    assert (missing.code, "ingot tenants list" in missing.stderr) == (3, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["change", "default"], "--weight"),
        (["change", "default", "--limit", "speed=1"], "'speed'"),
        (["change", "default", "--limit", "rate"], "'rate'"),
        (["change", "default", "--limit", "burst=many"], "'many'"),
        (["create", "Not A Slug"], "slug"),
    ],
)
def test_invalid_tenant_arguments_are_refused(place: Shell, words: list[str], said: str) -> None:
    done = place.run("tenants", *words)
    assert (done.code, done.stdout, said in done.stderr) == (2, "", True), done


# -- events -------------------------------------------------------------------------------------------------


def test_events_can_be_published_listed_and_followed(place: Shell) -> None:
    first = place.ok("events", "publish", "order.placed", "--data", '{"order": 7}', "--key", "order-7").strip()
    assert place.json(
        "events", "publish", "order.placed", "--data-file", "-", "--key", "order-7", typed='{"order": 7}'
    ) == {"id": first}, "once"
    place.ok("events", "publish", "order.paid")
    listed = place.json("events", "list", "--name", "order")
    assert [(event["name"], event["data"]) for event in listed] == [
        ("order.placed", {"order": 7}),
        ("order.paid", None),
    ]
    assert place.json("events", "list", "--name", "ord") == [], "whole segments"
    cut = place.run("events", "list", "--name", "order", "--limit", "1")
    assert (cut.stdout.count("order.placed"), f"--after {first}" in cut.stderr) == (1, True)
    (paid,) = place.lines("events", "tail", "--name", "order", "--after", first, "--limit", "1")
    assert paid["name"] == "order.paid"
    bad = place.run("events", "publish", "order.placed", "--data", "{")
    assert (bad.code, "--data" in bad.stderr) == (2, True)


def test_events_tail_prints_new_events_until_it_is_interrupted(place: Shell) -> None:
    before = place.ok("events", "publish", "bell.first").strip()
    with place.start("events", "tail", "--name", "bell", "--after", before, "--json") as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        for name in ("bell.second", "bell.third"):
            assert place.http.post("/events", json={"name": name}).status_code == 201
            assert json.loads(tail.stdout.readline())["name"] == name
        tail.send_signal(2)
        assert tail.wait(timeout=45) == 130
        assert tail.stderr.read() == ""
