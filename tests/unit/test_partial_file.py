"""Where bytes land: one at a time, and what is whole is never written again."""

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


def test_a_second_download_into_one_file_is_refused(tmp_path: Path) -> None:
    to = tmp_path / "a"
    with PartialFile(to, BLOB, len(DATA)) as first:
        first.write(DATA[:3])
        with pytest.raises(DownloadUnderWay, match=partial_path(to, BLOB).name):
            PartialFile(to, BLOB, len(DATA))
        PartialFile(tmp_path / "b", BLOB, len(DATA)).__exit__()  # Another file is another matter.
        first.write(DATA[3:])
        first.finish()
    assert to.read_bytes() == DATA
    with PartialFile(to, BLOB, len(DATA)) as again:
        assert again.existing_bytes == 0


def test_one_that_was_left_is_taken_up(tmp_path: Path) -> None:
    with PartialFile(tmp_path / "a", BLOB, len(DATA)) as first:
        first.write(DATA[:3])
    with PartialFile(tmp_path / "a", BLOB, len(DATA)) as second:
        assert second.existing_bytes == 3


def test_who_opened_a_file_that_was_finished_meanwhile_begins_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "a"
    first = PartialFile(to, BLOB, len(DATA))
    first.write(DATA)

    real_open = os.open

    def late(*args: Any) -> int:
        monkeypatch.undo()
        handle = real_open(*args)
        with first:
            first.finish()
        return handle

    monkeypatch.setattr(os, "open", late)
    with PartialFile(to, BLOB, 4) as second:
        second.write(b"else")
    assert to.read_bytes() == DATA
