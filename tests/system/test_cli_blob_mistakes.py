"""`ingot blobs` when somebody slips: what is told, how it ends, and that nothing else happened."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.system.programs import INGOT
from tests.system.shell import Shell, shell


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with shell(tmp_path_factory.mktemp("place")) as made:
        made.environment["XDG_CACHE_HOME"] = str(made.folder / "cache")
        (made.folder / "small.txt").write_text("hello\n", encoding="utf-8")
        yield made


def test_rm_with_an_empty_prefix_deletes_nothing(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "stays")
    for more in ("--yes", "--dry-run"):
        refused = place.run("blobs", "rm", "--prefix", "", more)
        assert (refused.code, "--prefix is empty" in refused.stderr, "purge --all" in refused.stderr) == (2, True, True)
    assert [key["key"] for key in place.json("blobs", "ls", "stays")] == ["stays"]


def test_rm_of_a_missing_key_names_it_and_reports_what_was_deleted(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "slip/a")
    place.ok("blobs", "put", "small.txt", "--key", "slip/c")
    done = place.run("blobs", "rm", "slip/a", "slip/b", "slip/c")
    assert done.code == 3
    assert "1 key deleted, 6 B." in done.stderr
    assert "there is no key 'slip/b'" in done.stderr
    assert [key["key"] for key in place.json("blobs", "ls", "slip/")] == ["slip/c"]


def test_verify_reports_a_prefix_without_keys(place: Shell) -> None:
    done = place.run("blobs", "verify", "--prefix", "nowhere/")
    assert (done.code, done.stdout, "'nowhere/'" in done.stderr) == (0, "", True)


@pytest.mark.parametrize("key", ["slip/", "", "slip//a"])
def test_get_refuses_an_invalid_key(place: Shell, key: str) -> None:
    done = place.run("blobs", "get", key)
    assert (done.code, "key" in done.stderr, "exists already" in done.stderr) == (2, True, False)


def test_a_quota_is_shown_with_all_digits(place: Shell) -> None:
    said = place.ok("tenants", "create", "roomy", "--limit", "quota_bytes=1234567890", "--limit", "rate=2.5")
    assert "quota_bytes = 1234567890" in said
    assert "rate = 2.5" in said
    assert "quota_bytes=1234567890" in place.ok("tenants", "list")
    assert "(1234567890 bytes), 0%" in place.ok("blobs", "usage", "--tenant", "roomy")


def test_submit_names_an_input_file_that_cannot_be_read(place: Shell) -> None:
    (place.folder / "folder").mkdir()
    for name, why in (("nowhere.pdf", "No such file"), ("folder", "is a folder")):
        done = place.run("jobs", "submit", "greet", "--file", "small.txt", "--file", name)
        assert (done.code, name in done.stderr, why in done.stderr) == (2, True, True)
    assert place.json("jobs", "list") == []


def test_the_curl_command_in_the_help_of_url_works(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "reports/march.pdf")
    said = place.run("blobs", "url", "--help").stdout
    line = 'curl -o march.pdf "$(ingot blobs url reports/march.pdf)"'
    assert line in said
    script = line.replace("ingot", INGOT).replace("curl", "curl -s")
    subprocess.run(["bash", "-c", script], cwd=place.folder, env=place.environment, check=True, timeout=30)
    assert (place.folder / "march.pdf").read_text(encoding="utf-8") == "hello\n"


def test_a_token_can_have_its_own_quota(place: Shell) -> None:
    words = ("tokens", "create", "the scanner", "--grant", "blobs.write", "--grant", "blobs.read")
    token = place.ok(*words, "--limit", "quota_bytes=8", "--limit", "rate=50").strip()
    first = place.run("blobs", "put", "small.txt", "--key", "scanned/1", INGOT_TOKEN=token)
    second = place.run("blobs", "put", "small.txt", "--key", "scanned/2", INGOT_TOKEN=token)
    assert (first.code, second.code, "6 of 8 bytes" in second.stderr) == (0, 5, True)
    assert "8 B (8 bytes), 75%" in place.run("blobs", "usage", "--mine", INGOT_TOKEN=token).stdout
    for limit, said in (("weight=1", "rate, burst, quota_bytes"), ("burst=many", "'many'")):
        refused = place.run(*words, "--limit", limit)
        assert (refused.code, said in refused.stderr) == (2, True)
