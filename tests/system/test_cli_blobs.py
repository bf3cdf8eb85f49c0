"""The commands of `ingot blobs`."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from blake3 import blake3

from ingot.client.partial_file import partial_path
from tests.system.shell import Shell, open_shell

MIB = 1024 * 1024
BIG = Random(10).randbytes(24 * MIB)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with open_shell(tmp_path_factory.mktemp("shell")) as shell:
        shell.environment["XDG_CACHE_HOME"] = str(shell.folder / "cache")
        (shell.folder / "small.txt").write_text("hello\n", encoding="utf-8")
        (shell.folder / "big.bin").write_bytes(BIG)
        for name in ("2025/a.txt", "2025/b.txt", "2026/c.txt"):
            path = shell.folder / "reports" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name, encoding="utf-8")
        yield shell


def test_files_can_be_stored_listed_fetched_and_deleted(shell: Shell) -> None:
    stored = shell.run("blobs", "put", "small.txt", "big.bin", "--prefix", "one/")
    assert (stored.code, stored.stdout) == (0, "one/small.txt\none/big.bin\n")
    assert "24.0 MiB" in stored.stderr
    table = [line.split() for line in shell.ok("blobs", "ls", "one/").splitlines()]
    assert [line[:3] for line in table] == [
        ["KEY", "SIZE", "TYPE"],
        ["one/big.bin", "24.0", "MiB"],
        ["one/small.txt", "6", "B"],
    ]
    (big, small) = shell.json("blobs", "ls", "one/")
    assert (big["blob_id"], small["content_type"]) == (blake3(BIG).hexdigest(), "text/plain")
    long = shell.ok("blobs", "ls", "one/", "--long")
    assert (big["blob_id"] in long, "big.bin" in long, big["owner"] in long) == (True, True, True)
    fetched = shell.run("blobs", "get", "one/big.bin", "-o", "back.bin")
    assert (fetched.code, fetched.stdout, "24.0 MiB" in fetched.stderr) == (0, "", True)
    assert (shell.folder / "back.bin").read_bytes() == BIG
    assert shell.ok("blobs", "get", "one/small.txt", "-o", "-") == "hello\n"
    os.mkdir(shell.folder / "into")
    shell.ok("blobs", "get", small["blob_id"], "-o", "into")
    assert shell.json("blobs", "get", "one/small.txt", "-o", "into")["file"] == "into/small.txt"
    assert (shell.folder / "into" / small["blob_id"]).read_text() == "hello\n"
    existing = shell.run("blobs", "get", "one/small.txt", "-o", "into")
    assert (existing.code, "--replace" in existing.stderr) == (4, True)
    shell.ok("blobs", "get", "one/small.txt", "-o", "into", "--replace")
    (gone,) = shell.json("blobs", "rm", "one/small.txt")
    assert gone["key"] == "one/small.txt"
    missing = shell.run("blobs", "get", "one/small.txt", "-o", "never")
    assert (missing.code, "`ingot blobs ls`" in missing.stderr) == (3, True)


def test_put_replaces_a_key_only_with_the_replace_option(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "k")
    assert shell.ok("blobs", "put", "small.txt", "--key", "k") == "k\n", "the same bytes were refused"
    other = shell.run("blobs", "put", "big.bin", "--key", "k")
    assert (other.code, "'k'" in other.stderr, "--replace" in other.stderr) == (4, True, True)
    assert shell.json("blobs", "put", "big.bin", "--key", "k", "--replace", "--type", "image/png")[0]["size"] == len(
        BIG
    )
    assert shell.json("blobs", "ls", "k")[0]["content_type"] == "image/png"


def test_folders_can_be_stored_and_deleted_by_prefix(shell: Shell) -> None:
    assert shell.run("blobs", "put", "reports").code == 2
    keys = shell.ok("blobs", "put", "-r", "reports", "--prefix", "f").splitlines()
    assert keys == ["f/reports/2025/a.txt", "f/reports/2025/b.txt", "f/reports/2026/c.txt"]
    assert shell.run("blobs", "put", "-r", "reports", "--prefix", "f").code == 0, "existing keys were refused"
    would = shell.run("blobs", "rm", "--prefix", "f/reports/2025", "--dry-run")
    assert (would.code, "2 keys, 20 B" in would.stderr, "f/reports/2025/b.txt" in would.stderr) == (0, True, True)
    assert shell.json("blobs", "rm", "--prefix", "f/reports/2025", "--dry-run")["keys"] == 2
    unasked = shell.run("blobs", "rm", "--prefix", "f/reports/2025")
    assert (unasked.code, "--yes" in unasked.stderr) == (2, True)
    seen, code = shell.on_terminal("blobs", "rm", "--prefix", "f/reports/2025", answer="n")
    assert (code, "Delete 2 keys?" in seen) == (1, True)
    assert len(shell.json("blobs", "ls", "f/")) == 3
    assert "2 keys deleted, 20 B" in shell.run("blobs", "rm", "--prefix", "f/reports/2025", "--yes").stderr
    assert [key["key"] for key in shell.json("blobs", "ls", "f/")] == ["f/reports/2026/c.txt"]


def test_why_verify_usage_url_and_collect_report_about_blobs(shell: Shell) -> None:
    shell.ok("blobs", "put", "small.txt", "--key", "w/1")
    why = shell.ok("blobs", "why", "w/1")
    assert (blake3(b"hello\n").hexdigest() in why, "w/1" in why, "key" in why) == (True, True, True)
    assert shell.json("blobs", "why", blake3(b"hello\n").hexdigest())["size"] == 6
    assert shell.ok("blobs", "verify", "w/1").split() == ["whole", "w/1"]
    assert shell.json("blobs", "verify", "--prefix", "w/")[0]["whole"] is True
    assert shell.json("blobs", "usage")["keys"] >= 1
    assert "quota" in shell.ok("blobs", "usage", "--mine")
    address = shell.ok("blobs", "url", "w/1", "--seconds", "60").strip()
    fetched = subprocess.run(["curl", "-sS", address], capture_output=True, text=True, timeout=45, check=True)
    assert fetched.stdout == "hello\n"
    assert shell.json("blobs", "collect", "--dry-run")["dry_run"] is True
    assert "uploads" in shell.ok("blobs", "collect")


def test_verify_of_a_damaged_blob_exits_with_1(shell: Shell) -> None:
    (shell.folder / "mine.bin").write_bytes(Random(11).randbytes(MIB))
    shell.ok("blobs", "put", "mine.bin", "--key", "harm/1")
    (stored,) = (path for path in (shell.folder / "data").rglob("*") if path.is_file() and path.stat().st_size == MIB)
    os.chmod(stored, 0o600)
    with stored.open("r+b") as file:
        file.seek(MIB // 2)
        file.write(b"other")
    verified = shell.run("blobs", "verify", "harm/1")
    assert (verified.code, verified.stdout.split(), "damaged" in verified.stderr) == (1, ["damaged", "harm/1"], True)
    assert shell.run("blobs", "get", "harm/1", "-o", "never").code == 1
    assert not (shell.folder / "never").exists()
    shell.ok("blobs", "rm", "harm/1")


def test_purge_deletes_the_keys_of_an_owner_after_a_dry_run(shell: Shell) -> None:
    made = shell.json("tokens", "create", "the shop", "--grant", "blobs.*")
    (shell.folder / "shop.token").write_text(made["token"], encoding="utf-8")
    shell.ok("blobs", "put", "small.txt", "--key", "shop/1", "--token-file", "shop.token")
    owner = f"token:{made['id']}"
    shell.ok("tokens", "revoke", made["id"])
    assert shell.json("blobs", "purge", "--owner", owner, "--dry-run") == {
        "keys": 1, "bytes": 6, "more": False, "dry_run": True,
    }  # fmt: skip
    assert (shell.run("blobs", "purge", "--owner", owner).code, shell.run("blobs", "purge").code) == (2, 2)
    assert "1 key deleted, 6 B" in shell.run("blobs", "purge", "--owner", owner, "--yes").stderr
    assert shell.json("blobs", "ls", "shop/") == []


@pytest.mark.parametrize("key", ["a/../b", "a//b", "k" * 5000, "a\nb"])
def test_put_refuses_an_invalid_key(shell: Shell, key: str) -> None:
    done = shell.run("blobs", "put", "small.txt", "--key", key)
    assert (done.code, done.stdout, "Hint: Use a path" in done.stderr) == (2, "", True)


def test_put_and_get_explain_invalid_arguments(shell: Shell) -> None:
    for arguments, message in (
        (["nowhere.txt"], "nowhere.txt cannot be read"),
        (["-"], "--key"),
        (["small.txt", "big.bin", "--key", "k"], "got 2"),
        (["small.txt", "--key", "k", "--prefix", "p"], "--prefix"),
        (["small.txt", "reports/../small.txt"], "'small.txt'"),
        (["small.txt", "--type", "no type"], "'no type'"),
    ):
        done = shell.run("blobs", "put", *arguments)
        assert (done.code, done.stdout, message in done.stderr) == (2, "", True), done
    assert shell.run("blobs", "rm").code == 2
    shell.ok("blobs", "put", "small.txt", "--key", "cannot/1")
    nowhere = shell.run("blobs", "get", "cannot/1", "-o", "nowhere/x")
    assert (nowhere.code, "nowhere/x cannot be written" in nowhere.stderr) == (2, True)


def test_put_stores_stdin(shell: Shell) -> None:
    shell.ok("blobs", "put", "-", "--key", "in/1.txt", stdin_text="typed\n")
    assert shell.ok("blobs", "get", "in/1.txt", "-o", "-") == "typed\n"


def test_put_beyond_the_quota_exits_with_5(shell: Shell) -> None:
    shell.ok("tenants", "create", "small", "--limit", f"quota_bytes={MIB}")
    for name in ("big.bin", "medium.bin"):
        (shell.folder / "medium.bin").write_bytes(bytes(2 * MIB))
        done = shell.run("blobs", "put", name, "--tenant", "small")
        assert (done.code, done.stdout) == (5, "")
        assert f"of {MIB} bytes" in done.stderr
        assert "`ingot blobs usage`" in done.stderr
    assert shell.json("blobs", "usage", "--tenant", "small") == {
        "bytes": 0, "reserved_bytes": 0,
        "deleted_bytes": 0,
        "freed_from": None,
        "freed_by": None, "keys": 0, "quota_bytes": MIB,
    }  # fmt: skip


def test_a_terminal_shows_progress_bars(shell: Shell) -> None:
    (shell.folder / "bar.bin").write_bytes(Random(12).randbytes(24 * MIB))
    seen, code = shell.on_terminal("blobs", "put", "bar.bin")
    assert (code, "hashing bar.bin" in seen, "sending bar.bin" in seen, "MiB" in seen) == (0, True, True, True)
    seen, code = shell.on_terminal("blobs", "get", "bar.bin", "-o", "bar.back")
    assert (code, "fetching bar.bin" in seen) == (0, True)


def unfinished(shell: Shell) -> list[Path]:
    """Return the cache files of unfinished uploads."""
    return list((shell.folder / "cache" / "ingot" / "uploads").glob("*.json"))


def test_an_upload_resumes_after_ctrl_c(shell: Shell) -> None:
    path = shell.folder / "long.bin"
    path.write_bytes(Random(13).randbytes(64 * MIB))
    with shell.start("blobs", "put", "long.bin") as putting:
        while putting.poll() is None and not unfinished(shell):
            pass
        putting.send_signal(signal.SIGSTOP)  # From here on it runs only briefly, so that it is interrupted midway.
        while received_bytes(shell, unfinished(shell)) == 0:
            putting.send_signal(signal.SIGCONT)
            received_bytes(shell, unfinished(shell))
            putting.send_signal(signal.SIGSTOP)
        putting.send_signal(signal.SIGINT)
        putting.send_signal(signal.SIGCONT)
        _, message = putting.communicate(timeout=45)
    assert (putting.returncode, "same command" in message) == (130, True)
    (cache_file,) = unfinished(shell)
    before = received_bytes(shell, [cache_file])
    assert before > 0
    assert shell.ok("blobs", "put", "long.bin") == "long.bin\n"
    assert unfinished(shell) == []
    assert shell.json("blobs", "ls", "long.bin")[0]["blob_id"] == blake3(path.read_bytes()).hexdigest()
    assert shell.json("blobs", "usage")["reserved_bytes"] == 0, "another upload was begun"


def received_bytes(shell: Shell, found: list[Path]) -> int:
    """Return how many bytes of an upload the server has received."""
    id = found[0].read_text(encoding="utf-8").split('"')[3]
    return int(shell.http.get(f"/blobs/uploads/{id}").json()["upload"]["received"])


def test_a_download_resumes_from_the_partial_file(shell: Shell) -> None:
    shell.ok("blobs", "put", "big.bin", "--key", "part/big")
    (key,) = shell.json("blobs", "ls", "part/big")
    part = partial_path(shell.folder / "part.bin", key["blob_id"])
    part.write_bytes(BIG[: 20 * MIB])
    before = shell.http.get(shell.url + "/metrics").text
    shell.ok("blobs", "get", "part/big", "-o", "part.bin")
    after = shell.http.get(shell.url + "/metrics").text
    assert (shell.folder / "part.bin").read_bytes() == BIG
    assert not part.exists()
    assert sent_bytes(after) - sent_bytes(before) == 4 * MIB


def sent_bytes(metrics: str) -> float:
    """Return the number of blob bytes that a server has sent."""
    (found,) = (line for line in metrics.splitlines() if line.startswith('ingot_blob_bytes_moved_total{way="out"}'))
    return float(found.rpartition(" ")[2])
