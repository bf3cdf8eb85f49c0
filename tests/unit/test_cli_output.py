"""What commands say of bytes, and what they remember of uploads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.cli.output import format_size
from ingot.cli.resume_cache import RETENTION_SECONDS, ResumeEntry
from ingot.client.upload_source import UnfinishedUpload
from ingot.settings import cache_folder

LEFT = UnfinishedUpload(id="an upload", part_bytes=16)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (102_399, "100 KiB"),
        (1_047_552, "1.0 MiB"),
        (24 * 1024**2, "24.0 MiB"),
        (5 * 1024**5, "5120 TiB"),
    ],
)
def test_sizes_are_said_in_units_that_people_grasp(size: int, said: str) -> None:
    assert format_size(size) == said


def remembered(path: Path, **other: str) -> ResumeEntry:
    return ResumeEntry(path, **{"server": "http://here", "tenant": "", "key": "k", **other})


def test_an_upload_is_remembered_for_the_same_file_and_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "file"
    file.write_bytes(b"1")
    assert remembered(file).read() is None
    remembered(file).write(LEFT)
    assert remembered(file).read() == LEFT
    for other in ({"server": "http://there"}, {"tenant": "acme"}, {"key": "other"}):
        assert remembered(file, **other).read() is None
    os.utime(file, (1, 1))
    assert remembered(file).read() is None, "it was changed since"
    remembered(file).write(LEFT)
    remembered(file).delete()
    assert remembered(file).read() is None


def test_what_no_server_remembers_is_forgotten_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(b"1")
    remembered(tmp_path / "old").write(LEFT)
    (kept,) = (tmp_path / "cache" / "ingot" / "uploads").iterdir()
    long_ago = kept.stat().st_mtime - RETENTION_SECONDS - 60
    os.utime(kept, (long_ago, long_ago))
    remembered(tmp_path / "new").write(LEFT)
    assert (remembered(tmp_path / "old").read(), remembered(tmp_path / "new").read()) == (None, LEFT)


def test_where_nothing_can_be_remembered_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_bytes(b"1")
    remembered(tmp_path / "file").write(LEFT)
    assert remembered(tmp_path / "file").read() is None
    assert remembered(tmp_path / "nowhere").read() is None


def test_the_cache_folder_is_where_the_user_says(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "ingot"
    for said in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(said) == Path.home() / ".cache" / "ingot"
