"""`ingot blobs` with mistakes in its arguments: messages and exit codes, and that nothing else happens."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.system.programs import INGOT
from tests.system.shell import Shell, open_shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        shell.environment["XDG_CACHE_HOME"] = str(shell.folder / "cache")
        (shell.folder / "small.txt").write_text("hello\n", encoding="utf-8")
        yield shell


def test_rm_with_an_empty_prefix_deletes_nothing(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "stays")
    for more in ("--yes", "--dry-run"):
        refused = shell.run("blobs", "rm", "--prefix", "", more)
        assert (refused.code, "--prefix is empty" in refused.stderr, "purge --all" in refused.stderr) == (2, True, True)
    assert [key["key"] for key in shell.json("blobs", "ls", "stays")] == ["stays"]


def test_rm_of_a_missing_key_names_it_and_reports_what_was_deleted(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "slip/a")
    shell.ok("blobs", "put", "small.txt", "--key", "slip/c")
    done = shell.run("blobs", "rm", "slip/a", "slip/b", "slip/c")
    assert done.code == 3
    assert "1 key deleted, 6 B." in done.stderr
    assert "there is no key 'slip/b'" in done.stderr
    assert [key["key"] for key in shell.json("blobs", "ls", "slip/")] == ["slip/c"]


def test_verify_reports_a_prefix_without_keys(shell: Shell) -> None:
    done = shell.run("blobs", "verify", "--prefix", "nowhere/")
    assert (done.code, done.stdout, "'nowhere/'" in done.stderr) == (0, "", True)


@pytest.mark.parametrize("key", ["slip/", "", "slip//a"])
def test_get_refuses_an_invalid_key(shell: Shell, key: str) -> None:
    done = shell.run("blobs", "get", key)
    assert (done.code, "key" in done.stderr, "exists already" in done.stderr) == (2, True, False)


def test_a_quota_is_shown_with_all_digits(shell: Shell) -> None:
    message = shell.ok("tenants", "create", "roomy", "--limit", "quota_bytes=1234567890", "--limit", "rate=2.5")
    assert "quota_bytes = 1234567890" in message
    assert "rate = 2.5" in message
    assert "quota_bytes=1234567890" in shell.ok("tenants", "list")
    assert "(1234567890 bytes), 0%" in shell.ok("blobs", "usage", "--tenant", "roomy")


def test_submit_names_an_input_file_that_cannot_be_read(shell: Shell) -> None:
    (shell.folder / "folder").mkdir()
    for name, why in (("nowhere.pdf", "No such file"), ("folder", "is a folder")):
        done = shell.run("jobs", "submit", "greet", "--file", "small.txt", "--file", name)
        assert (done.code, name in done.stderr, why in done.stderr) == (2, True, True)
    assert shell.json("jobs", "list") == []


def test_the_curl_command_in_the_help_of_url_works(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "reports/march.pdf")
    message = shell.run("blobs", "url", "--help").stdout
    line = 'curl -o march.pdf "$(ingot blobs url reports/march.pdf)"'
    assert line in message
    script = line.replace("ingot", INGOT).replace("curl", "curl -s")
    subprocess.run(["bash", "-c", script], cwd=shell.folder, env=shell.environment, check=True, timeout=30)
    assert (shell.folder / "march.pdf").read_text(encoding="utf-8") == "hello\n"


def test_a_token_can_have_its_own_quota(shell: Shell) -> None:
    arguments = ("tokens", "create", "the scanner", "--grant", "blobs.write", "--grant", "blobs.read")
    token = shell.ok(*arguments, "--limit", "quota_bytes=8", "--limit", "rate=50").strip()
    first = shell.run("blobs", "put", "small.txt", "--key", "scanned/1", INGOT_TOKEN=token)
    second = shell.run("blobs", "put", "small.txt", "--key", "scanned/2", INGOT_TOKEN=token)
    assert (first.code, second.code, "6 of 8 bytes" in second.stderr) == (0, 5, True)
    assert "8 B (8 bytes), 75%" in shell.run("blobs", "usage", "--mine", INGOT_TOKEN=token).stdout
    for limit, message in (("weight=1", "rate, burst, quota_bytes"), ("burst=many", "'many'")):
        refused = shell.run(*arguments, "--limit", limit)
        assert (refused.code, message in refused.stderr) == (2, True)
