"""`ingot blobs` as people type it."""

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
from tests.system.shell import Shell, shell

MIB = 1024 * 1024
BIG = Random(10).randbytes(24 * MIB)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with shell(tmp_path_factory.mktemp("place")) as made:
        made.environment["XDG_CACHE_HOME"] = str(made.folder / "cache")
        (made.folder / "small.txt").write_text("hello\n", encoding="utf-8")
        (made.folder / "big.bin").write_bytes(BIG)
        for name in ("2025/a.txt", "2025/b.txt", "2026/c.txt"):
            path = made.folder / "reports" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name, encoding="utf-8")
        yield made


def test_files_can_be_stored_listed_fetched_and_deleted(place: Shell) -> None:
    stored = place.run("blobs", "put", "small.txt", "big.bin", "--prefix", "one/")
    assert (stored.code, stored.stdout) == (0, "one/small.txt\none/big.bin\n")
    assert "24.0 MiB" in stored.stderr
    table = [line.split() for line in place.ok("blobs", "ls", "one/").splitlines()]
    assert [line[:3] for line in table] == [
        ["KEY", "SIZE", "TYPE"],
        ["one/big.bin", "24.0", "MiB"],
        ["one/small.txt", "6", "B"],
    ]
    (big, small) = place.json("blobs", "ls", "one/")
    assert (big["blob_id"], small["content_type"]) == (blake3(BIG).hexdigest(), "text/plain")
    long = place.ok("blobs", "ls", "one/", "--long")
    assert (big["blob_id"] in long, "big.bin" in long, big["owner"] in long) == (True, True, True)
    fetched = place.run("blobs", "get", "one/big.bin", "-o", "back.bin")
    assert (fetched.code, fetched.stdout, "24.0 MiB" in fetched.stderr) == (0, "", True)
    assert (place.folder / "back.bin").read_bytes() == BIG
    assert place.ok("blobs", "get", "one/small.txt", "-o", "-") == "hello\n"
    os.mkdir(place.folder / "into")
    place.ok("blobs", "get", small["blob_id"], "-o", "into")
    assert place.json("blobs", "get", "one/small.txt", "-o", "into")["file"] == "into/small.txt"
    assert (place.folder / "into" / small["blob_id"]).read_text() == "hello\n"
    there = place.run("blobs", "get", "one/small.txt", "-o", "into")
    assert (there.code, "--replace" in there.stderr) == (4, True)
    place.ok("blobs", "get", "one/small.txt", "-o", "into", "--replace")
    (gone,) = place.json("blobs", "rm", "one/small.txt")
    assert gone["key"] == "one/small.txt"
    missing = place.run("blobs", "get", "one/small.txt", "-o", "never")
    assert (missing.code, "`ingot blobs ls`" in missing.stderr) == (3, True)


def test_put_replaces_a_key_only_with_the_replace_option(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "k")
    assert place.ok("blobs", "put", "small.txt", "--key", "k") == "k\n", "the same bytes are there already"
    other = place.run("blobs", "put", "big.bin", "--key", "k")
    assert (other.code, "'k'" in other.stderr, "--replace" in other.stderr) == (4, True, True)
    assert place.json("blobs", "put", "big.bin", "--key", "k", "--replace", "--type", "image/png")[0]["size"] == len(
        BIG
    )
    assert place.json("blobs", "ls", "k")[0]["content_type"] == "image/png"


def test_folders_can_be_stored_and_deleted_by_prefix(place: Shell) -> None:
    assert place.run("blobs", "put", "reports").code == 2
    keys = place.ok("blobs", "put", "-r", "reports", "--prefix", "f").splitlines()
    assert keys == ["f/reports/2025/a.txt", "f/reports/2025/b.txt", "f/reports/2026/c.txt"]
    assert place.run("blobs", "put", "-r", "reports", "--prefix", "f").code == 0, "what is there is not sent again"
    would = place.run("blobs", "rm", "--prefix", "f/reports/2025", "--dry-run")
    assert (would.code, "2 keys, 20 B" in would.stderr, "f/reports/2025/b.txt" in would.stderr) == (0, True, True)
    assert place.json("blobs", "rm", "--prefix", "f/reports/2025", "--dry-run")["keys"] == 2
    unasked = place.run("blobs", "rm", "--prefix", "f/reports/2025")
    assert (unasked.code, "--yes" in unasked.stderr) == (2, True)
    seen, code = place.on_terminal("blobs", "rm", "--prefix", "f/reports/2025", answer="n")
    assert (code, "Delete 2 keys?" in seen) == (1, True)
    assert len(place.json("blobs", "ls", "f/")) == 3
    assert "2 keys deleted, 20 B" in place.run("blobs", "rm", "--prefix", "f/reports/2025", "--yes").stderr
    assert [key["key"] for key in place.json("blobs", "ls", "f/")] == ["f/reports/2026/c.txt"]


def test_why_verify_usage_url_and_collect_report_about_blobs(place: Shell) -> None:
    place.ok("blobs", "put", "small.txt", "--key", "w/1")
    why = place.ok("blobs", "why", "w/1")
    assert (blake3(b"hello\n").hexdigest() in why, "w/1" in why, "key" in why) == (True, True, True)
    assert place.json("blobs", "why", blake3(b"hello\n").hexdigest())["size"] == 6
    assert place.ok("blobs", "verify", "w/1").split() == ["whole", "w/1"]
    assert place.json("blobs", "verify", "--prefix", "w/")[0]["whole"] is True
    assert place.json("blobs", "usage")["keys"] >= 1
    assert "quota" in place.ok("blobs", "usage", "--mine")
    address = place.ok("blobs", "url", "w/1", "--seconds", "60").strip()
    fetched = subprocess.run(["curl", "-sS", address], capture_output=True, text=True, timeout=45, check=True)
    assert fetched.stdout == "hello\n"
    assert place.json("blobs", "collect", "--dry-run")["dry_run"] is True
    assert "uploads" in place.ok("blobs", "collect")


def test_verify_of_a_damaged_blob_exits_with_1(place: Shell) -> None:
    (place.folder / "mine.bin").write_bytes(Random(11).randbytes(MIB))
    place.ok("blobs", "put", "mine.bin", "--key", "harm/1")
    (stored,) = (path for path in (place.folder / "data").rglob("*") if path.is_file() and path.stat().st_size == MIB)
    os.chmod(stored, 0o600)
    with stored.open("r+b") as file:
        file.seek(MIB // 2)
        file.write(b"other")
    looked = place.run("blobs", "verify", "harm/1")
    assert (looked.code, looked.stdout.split(), "damaged" in looked.stderr) == (1, ["damaged", "harm/1"], True)
    assert place.run("blobs", "get", "harm/1", "-o", "never").code == 1
    assert not (place.folder / "never").exists()
    place.ok("blobs", "rm", "harm/1")


def test_purge_deletes_the_keys_of_an_owner_after_a_dry_run(place: Shell) -> None:
    made = place.json("tokens", "create", "the shop", "--grant", "blobs.*")
    (place.folder / "shop.token").write_text(made["token"], encoding="utf-8")
    place.ok("blobs", "put", "small.txt", "--key", "shop/1", "--token-file", "shop.token")
    owner = f"token:{made['id']}"
    place.ok("tokens", "revoke", made["id"])
    assert place.json("blobs", "purge", "--owner", owner, "--dry-run") == {
        "keys": 1, "bytes": 6, "more": False, "dry_run": True,
    }  # fmt: skip
    assert (place.run("blobs", "purge", "--owner", owner).code, place.run("blobs", "purge").code) == (2, 2)
    assert "1 key deleted, 6 B" in place.run("blobs", "purge", "--owner", owner, "--yes").stderr
    assert place.json("blobs", "ls", "shop/") == []


@pytest.mark.parametrize("key", ["a/../b", "a//b", "k" * 5000, "a\nb"])
def test_put_refuses_an_invalid_key(place: Shell, key: str) -> None:
    done = place.run("blobs", "put", "small.txt", "--key", key)
    assert (done.code, done.stdout, "Hint: Use a path" in done.stderr) == (2, "", True)


def test_put_and_get_explain_invalid_arguments(place: Shell) -> None:
    for words, said in (
        (["nowhere.txt"], "nowhere.txt cannot be read"),
        (["-"], "--key"),
        (["small.txt", "big.bin", "--key", "k"], "got 2"),
        (["small.txt", "--key", "k", "--prefix", "p"], "--prefix"),
        (["small.txt", "reports/../small.txt"], "'small.txt'"),
        (["small.txt", "--type", "no type"], "'no type'"),
    ):
        done = place.run("blobs", "put", *words)
        assert (done.code, done.stdout, said in done.stderr) == (2, "", True), done
    assert place.run("blobs", "rm").code == 2
    place.ok("blobs", "put", "small.txt", "--key", "cannot/1")
    nowhere = place.run("blobs", "get", "cannot/1", "-o", "nowhere/x")
    assert (nowhere.code, "nowhere/x cannot be written" in nowhere.stderr) == (2, True)


def test_put_stores_stdin(place: Shell) -> None:
    place.ok("blobs", "put", "-", "--key", "in/1.txt", typed="typed\n")
    assert place.ok("blobs", "get", "in/1.txt", "-o", "-") == "typed\n"


def test_put_beyond_the_quota_exits_with_5(place: Shell) -> None:
    place.ok("tenants", "create", "small", "--limit", f"quota_bytes={MIB}")
    for name in ("big.bin", "medium.bin"):
        (place.folder / "medium.bin").write_bytes(bytes(2 * MIB))
        done = place.run("blobs", "put", name, "--tenant", "small")
        assert (done.code, done.stdout) == (5, "")
        assert f"of {MIB} bytes" in done.stderr
        assert "`ingot blobs usage`" in done.stderr
    assert place.json("blobs", "usage", "--tenant", "small") == {
        "bytes": 0, "reserved_bytes": 0, "keys": 0, "quota_bytes": MIB,
    }  # fmt: skip


def test_a_terminal_shows_progress_bars(place: Shell) -> None:
    (place.folder / "bar.bin").write_bytes(Random(12).randbytes(24 * MIB))
    seen, code = place.on_terminal("blobs", "put", "bar.bin")
    assert (code, "hashing bar.bin" in seen, "sending bar.bin" in seen, "MiB" in seen) == (0, True, True, True)
    seen, code = place.on_terminal("blobs", "get", "bar.bin", "-o", "bar.back")
    assert (code, "fetching bar.bin" in seen) == (0, True)


def unfinished(place: Shell) -> list[Path]:
    """What is remembered of uploads that were not finished."""
    return list((place.folder / "cache" / "ingot" / "uploads").glob("*.json"))


def test_an_upload_resumes_after_ctrl_c(place: Shell) -> None:
    path = place.folder / "long.bin"
    path.write_bytes(Random(13).randbytes(64 * MIB))
    with place.start("blobs", "put", "long.bin") as putting:
        while putting.poll() is None and not unfinished(place):
            pass
        putting.send_signal(signal.SIGSTOP)  # From here on it runs for moments only, so that it is caught midway.
        while received(place, unfinished(place)) == 0:
            putting.send_signal(signal.SIGCONT)
            received(place, unfinished(place))
            putting.send_signal(signal.SIGSTOP)
        putting.send_signal(signal.SIGINT)
        putting.send_signal(signal.SIGCONT)
        _, said = putting.communicate(timeout=45)
    assert (putting.returncode, "same command" in said) == (130, True)
    (left,) = unfinished(place)
    before = received(place, [left])
    assert before > 0
    assert place.ok("blobs", "put", "long.bin") == "long.bin\n"
    assert unfinished(place) == []
    assert place.json("blobs", "ls", "long.bin")[0]["blob_id"] == blake3(path.read_bytes()).hexdigest()
    assert place.json("blobs", "usage")["reserved_bytes"] == 0, "it was that upload, and no other"


def received(place: Shell, found: list[Path]) -> int:
    """How much of an upload is safely there."""
    id = found[0].read_text(encoding="utf-8").split('"')[3]
    return int(place.http.get(f"/blobs/uploads/{id}").json()["upload"]["received"])


def test_a_download_resumes_from_the_partial_file(place: Shell) -> None:
    place.ok("blobs", "put", "big.bin", "--key", "part/big")
    (key,) = place.json("blobs", "ls", "part/big")
    part = partial_path(place.folder / "part.bin", key["blob_id"])
    part.write_bytes(BIG[: 20 * MIB])
    before = place.http.get(place.url + "/metrics").text
    place.ok("blobs", "get", "part/big", "-o", "part.bin")
    after = place.http.get(place.url + "/metrics").text
    assert (place.folder / "part.bin").read_bytes() == BIG
    assert not part.exists()
    assert sent_of(after) - sent_of(before) == 4 * MIB


def sent_of(metrics: str) -> float:
    """How many bytes of blobs a server has sent."""
    (found,) = (line for line in metrics.splitlines() if line.startswith('ingot_blob_bytes_moved_total{way="out"}'))
    return float(found.rpartition(" ")[2])
