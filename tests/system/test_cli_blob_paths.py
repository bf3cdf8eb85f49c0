"""`ingot blobs` with links that lead nowhere, folders that are not there, owners without a kind, and full quotas."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.system.shell import Shell, shell


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with shell(tmp_path_factory.mktemp("place")) as made:
        made.environment["XDG_CACHE_HOME"] = str(made.folder / "cache")
        (made.folder / "small.txt").write_text("hello\n", encoding="utf-8")
        yield made


def test_put_of_a_folder_reports_a_broken_link_and_stores_the_other_files(place: Shell) -> None:
    folder = place.folder / "linked"
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_text("first", encoding="utf-8")
    (folder / "b").symlink_to("nowhere")
    (folder / "c").symlink_to(place.folder / "small.txt")
    (folder / "d").symlink_to("below", target_is_directory=True)
    (folder / "below" / "e").write_text("last", encoding="utf-8")
    keys = ["linked/a", "linked/c", "linked/below/e"]
    done = place.run("blobs", "put", "-r", "linked")
    assert (done.code, done.stdout.split()) == (2, keys)
    assert "linked/b cannot be read: No such file" in done.stderr
    assert "1 of 4 files cannot be read" in done.stderr
    assert {key["key"]: key["size"] for key in place.json("blobs", "ls", "linked/")} == dict(
        zip(keys, (5, 6, 4), strict=True)
    )
    again = place.run("blobs", "put", "-r", "linked", "--json")
    assert (again.code, [key["key"] for key in json.loads(again.stdout)]) == (2, keys)


def test_put_of_a_missing_file_names_the_file(place: Shell) -> None:
    done = place.run("blobs", "put", "nowhere.txt")
    assert (done.code, "nowhere.txt cannot be read: No such file" in done.stderr) == (2, True)
    assert "1 of 1" not in done.stderr


def test_get_creates_a_missing_folder_if_its_name_ends_with_a_slash(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "put/small.txt")
    place.ok("blobs", "get", "put/small.txt", "-o", "new/folder/")
    assert (place.folder / "new" / "folder" / "small.txt").read_text(encoding="utf-8") == "hello\n"
    assert place.run("blobs", "get", "put/small.txt", "-o", "new/folder").code == 4  # It is there by now.
    refused = place.run("blobs", "get", "put/small.txt", "-o", "small.txt/")
    assert (refused.code, "small.txt cannot be written" in refused.stderr) == (2, True)
    place.ok("blobs", "get", "put/small.txt", "-o", "plain")
    assert (place.folder / "plain").read_text(encoding="utf-8") == "hello\n"
    assert place.ok("blobs", "get", "put/small.txt", "-o", "-") == "hello\n"


def test_purge_refuses_an_owner_without_a_kind(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "owned")
    (key,) = place.json("blobs", "ls", "owned")
    for owner in (key["owner"].partition(":")[2], "token:", "tokens:1", ""):
        refused = place.run("blobs", "purge", "--owner", owner, "--yes")
        assert (refused.code, "token:ID" in refused.stderr) == (2, True), owner
    assert place.json("blobs", "ls", "owned") == [key]
    assert place.json("blobs", "purge", "--owner", "worker:press", "--dry-run")["keys"] == 0


def test_the_hint_for_a_full_quota_depends_on_whose_quota_it_is(place: Shell) -> None:
    words = ("tokens", "create", "the scanner", "--grant", "blobs.write", "--grant", "blobs.read")
    token = place.ok(*words, "--limit", "quota_bytes=8").strip()
    assert place.run("blobs", "put", "small.txt", "--key", "full/1", INGOT_TOKEN=token).code == 0
    own = place.run("blobs", "put", "small.txt", "--key", "full/2", INGOT_TOKEN=token)
    assert (own.code, "tokens create" in own.stderr, "tenants change" in own.stderr) == (5, True, False)
    place.ok("tenants", "create", "tiny", "--limit", "quota_bytes=5")
    whole = place.run("blobs", "put", "small.txt", "--tenant", "tiny")
    assert (whole.code, "tokens create" in whole.stderr, "tenants change" in whole.stderr) == (5, False, True)


def test_put_from_stdin_names_the_key_that_exists_already(place: Shell) -> None:
    place.ok("blobs", "put", "-", "--key", "piped/1", typed="one")
    refused = place.run("blobs", "put", "-", "--key", "piped/1", typed="two")
    assert (refused.code, "'piped/1'" in refused.stderr) == (4, True)
