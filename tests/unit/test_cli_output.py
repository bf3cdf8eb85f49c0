"""Sizes in the output of commands, and the cache of unfinished uploads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ingot.cli.output import format_size
from ingot.cli.resume_cache import RETENTION_SECONDS, ResumeEntry
from ingot.client.upload_source import UnfinishedUpload
from ingot.settings import cache_folder

UNFINISHED = UnfinishedUpload(id="an upload", part_bytes=16)


@pytest.mark.parametrize(
    ("size", "text"),
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
def test_sizes_are_formatted_with_binary_units(size: int, text: str) -> None:
    assert format_size(size) == text


def resume_entry(path: Path, **other: str) -> ResumeEntry:
    return ResumeEntry(path, **{"server": "http://here", "tenant": "", "key": "k", **other})


def test_an_unfinished_upload_is_cached_for_the_unchanged_file_until_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "file"
    file.write_bytes(b"1")
    assert resume_entry(file).read() is None
    resume_entry(file).write(UNFINISHED)
    assert resume_entry(file).read() == UNFINISHED
    for other in ({"server": "http://there"}, {"tenant": "acme"}, {"key": "other"}):
        assert resume_entry(file, **other).read() is None
    os.utime(file, (1, 1))
    assert resume_entry(file).read() is None, "the file was changed"
    resume_entry(file).write(UNFINISHED)
    resume_entry(file).delete()
    assert resume_entry(file).read() is None


def test_an_entry_older_than_its_upload_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(b"1")
    resume_entry(tmp_path / "old").write(UNFINISHED)
    (entry_file,) = (tmp_path / "cache" / "ingot" / "uploads").iterdir()
    long_ago = entry_file.stat().st_mtime - RETENTION_SECONDS - 60
    os.utime(entry_file, (long_ago, long_ago))
    resume_entry(tmp_path / "new").write(UNFINISHED)
    assert (resume_entry(tmp_path / "old").read(), resume_entry(tmp_path / "new").read()) == (None, UNFINISHED)


def test_an_unusable_cache_folder_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_bytes(b"1")
    resume_entry(tmp_path / "file").write(UNFINISHED)
    assert resume_entry(tmp_path / "file").read() is None
    assert resume_entry(tmp_path / "nowhere").read() is None


def test_the_cache_folder_follows_xdg_cache_home(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "ingot"
    for environment in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(environment) == Path.home() / ".cache" / "ingot"
