"""Partial files of downloads: one writer at a time, and complete files are never overwritten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ingot.client.errors import DownloadUnderWay
from ingot.client.partial_file import PartialFile, partial_path

DATA = b"all of it"
BLOB = blake3(DATA).hexdigest()


def test_a_second_download_to_the_same_file_is_rejected(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with PartialFile(target, BLOB, len(DATA)) as first:
        first.write(DATA[:3])
        with pytest.raises(DownloadUnderWay, match=partial_path(target, BLOB).name):
            PartialFile(target, BLOB, len(DATA))
        PartialFile(tmp_path / "b", BLOB, len(DATA)).__exit__()  # Another target is allowed.
        first.write(DATA[3:])
        first.finish()
    assert target.read_bytes() == DATA
    with PartialFile(target, BLOB, len(DATA)) as again:
        assert again.existing_bytes == 0


def test_a_partial_file_of_an_earlier_download_is_continued(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "a", BLOB, len(DATA)) as first:
        first.write(DATA[:3])
    with PartialFile(tmp_path / "a", BLOB, len(DATA)) as second:
        assert second.existing_bytes == 3


def test_a_download_that_opened_a_file_finished_meanwhile_starts_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "a"
    first = PartialFile(target, BLOB, len(DATA))
    first.write(DATA)

    real_open = os.open

    def open_and_finish_first(*args: Any) -> int:
        monkeypatch.undo()
        handle = real_open(*args)
        with first:
            first.finish()
        return handle

    monkeypatch.setattr(os, "open", open_and_finish_first)
    with PartialFile(target, BLOB, 4) as second:
        second.write(b"else")
    assert target.read_bytes() == DATA
