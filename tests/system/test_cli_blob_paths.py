"""`ingot blobs` with broken links, missing folders, invalid owners and full quotas."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.system.shell import Shell, open_shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        shell.environment["XDG_CACHE_HOME"] = str(shell.folder / "cache")
        (shell.folder / "small.txt").write_text("hello\n", encoding="utf-8")
        yield shell


def test_put_of_a_folder_reports_a_broken_link_and_stores_the_other_files(shell: Shell) -> None:
    folder = shell.folder / "linked"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_text("first", encoding="utf-8")
    (folder / "b").symlink_to("nowhere")
    (folder / "c").symlink_to(shell.folder / "small.txt")
    (folder / "d").symlink_to("below", target_is_directory=True)
    (folder / "below" / "e").write_text("last", encoding="utf-8")
    keys = ["linked/a", "linked/c", "linked/below/e"]
    done = shell.run("blobs", "put", "-r", "linked")
    assert (done.code, done.stdout.split()) == (2, keys)
    assert "linked/b cannot be read: No such file" in done.stderr
    assert "1 of 4 files cannot be read" in done.stderr
    assert {key["key"]: key["size"] for key in shell.json("blobs", "ls", "linked/")} == dict(
        zip(keys, (5, 6, 4), strict=True)
    )
    again = shell.run("blobs", "put", "-r", "linked", "--json")
    assert (again.code, [key["key"] for key in json.loads(again.stdout)]) == (2, keys)


def test_put_of_a_missing_file_names_the_file(shell: Shell) -> None:
    done = shell.run("blobs", "put", "nowhere.txt")
    assert (done.code, "nowhere.txt cannot be read: No such file" in done.stderr) == (2, True)
    assert "1 of 1" not in done.stderr


def test_get_creates_a_missing_folder_if_its_name_ends_with_a_slash(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "put/small.txt")
    shell.ok("blobs", "get", "put/small.txt", "-o", "new/folder/")
    assert (shell.folder / "new" / "folder" / "small.txt").read_text(encoding="utf-8") == "hello\n"
    assert shell.run("blobs", "get", "put/small.txt", "-o", "new/folder").code == 4  # The file exists now.
    refused = shell.run("blobs", "get", "put/small.txt", "-o", "small.txt/")
    assert (refused.code, "small.txt cannot be written" in refused.stderr) == (2, True)
    shell.ok("blobs", "get", "put/small.txt", "-o", "plain")
    assert (shell.folder / "plain").read_text(encoding="utf-8") == "hello\n"
    assert shell.ok("blobs", "get", "put/small.txt", "-o", "-") == "hello\n"


def test_purge_refuses_an_owner_without_a_kind(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "owned")
    (key,) = shell.json("blobs", "ls", "owned")
    for owner in (key["owner"].partition(":")[2], "token:", "tokens:1", ""):
        refused = shell.run("blobs", "purge", "--owner", owner, "--yes")
        assert (refused.code, "token:ID" in refused.stderr) == (2, True), owner
    assert shell.json("blobs", "ls", "owned") == [key]
    assert shell.json("blobs", "purge", "--owner", "worker:press", "--dry-run")["keys"] == 0


def test_the_hint_for_a_full_quota_depends_on_whose_quota_it_is(shell: Shell) -> None:
    arguments = ("tokens", "create", "the scanner", "--grant", "blobs.write", "--grant", "blobs.read")
    token = shell.ok(*arguments, "--limit", "quota_bytes=8").strip()
    assert shell.run("blobs", "put", "small.txt", "--key", "full/1", INGOT_TOKEN=token).code == 0
    own = shell.run("blobs", "put", "small.txt", "--key", "full/2", INGOT_TOKEN=token)
    assert (own.code, "tokens create" in own.stderr, "tenants change" in own.stderr) == (5, True, False)
    shell.ok("tenants", "create", "tiny", "--limit", "quota_bytes=5")
    whole = shell.run("blobs", "put", "small.txt", "--tenant", "tiny")
    assert (whole.code, "tokens create" in whole.stderr, "tenants change" in whole.stderr) == (5, False, True)


def test_put_from_stdin_names_the_key_that_exists_already(shell: Shell) -> None:
    shell.ok("blobs", "put", "-", "--key", "piped/1", stdin_text="one")
    refused = shell.run("blobs", "put", "-", "--key", "piped/1", stdin_text="two")
    assert (refused.code, "'piped/1'" in refused.stderr) == (4, True)
