"""The secret key: created once, durable, and readable only for the server."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_IMODE
from threading import Barrier

import pytest

from ingot.kernel.secret_key import SecretKeyUnusable, load_secret_keys

CONFIGURED = "0123456789abcdef" * 2


def test_a_key_is_created_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    key = load_secret_keys(folder)[0]
    assert len(key) == 64
    assert load_secret_keys(folder)[0] == key
    assert S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret.key"]
    assert load_secret_keys(tmp_path / "other")[0] != key


def test_a_configured_key_is_used_and_not_written(tmp_path: Path) -> None:
    assert load_secret_keys(tmp_path, CONFIGURED)[0] == CONFIGURED.encode()
    assert list(tmp_path.iterdir()) == []


def test_a_key_can_be_configured_with_the_text_of_the_file(tmp_path: Path) -> None:
    key = load_secret_keys(tmp_path)[0]
    assert load_secret_keys(tmp_path, (tmp_path / "secret.key").read_text())[0] == key


def test_concurrent_processes_get_the_same_key(tmp_path: Path) -> None:
    barrier = Barrier(16)

    def load(folder: Path) -> bytes:
        barrier.wait()
        return load_secret_keys(folder)[0]

    with ThreadPoolExecutor(16) as pool:
        for number in range(10):
            folder = tmp_path / str(number)
            assert len(set(pool.map(load, [folder] * 16))) == 1
            assert [path.name for path in folder.iterdir()] == ["secret.key"]


def test_a_key_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for name in ("fsync", "link"):

        def record(*arguments: object, name: str = name, real: object = getattr(os, name)) -> object:
            steps.append(name)
            return real(*arguments)  # type: ignore[operator]

        monkeypatch.setattr(os, name, record)
    load_secret_keys(tmp_path)[0]
    assert steps == ["fsync", "link", "fsync"]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_key_that_could_not_be_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(SecretKeyUnusable, match="No space left"):
            load_secret_keys(tmp_path)[0]
    assert list(tmp_path.iterdir()) == []
    assert load_secret_keys(tmp_path)[0]


@pytest.mark.parametrize("text", ["", "short", "a" * 31, "\u00fc" * 64, "a" * 20 + "\n" + "b" * 20])
def test_an_invalid_key_is_rejected_and_not_overwritten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret.key"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(SecretKeyUnusable):
        load_secret_keys(tmp_path)[0]
    assert path.read_text(encoding="utf-8") == text
    with pytest.raises(SecretKeyUnusable):
        load_secret_keys(tmp_path, text)[0]


def test_a_key_that_others_can_read_is_rejected(tmp_path: Path) -> None:
    load_secret_keys(tmp_path)[0]
    (tmp_path / "secret.key").chmod(0o640)
    with pytest.raises(SecretKeyUnusable, match="others"):
        load_secret_keys(tmp_path)[0]


def test_a_path_that_is_not_a_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecretKeyUnusable):
        load_secret_keys(tmp_path / "file")[0]


@pytest.mark.parametrize("separator", [",", "\n", " , ", ",\n\n", "\r\n"])
def test_older_keys_follow_the_current_one(tmp_path: Path, separator: str) -> None:
    other = CONFIGURED[::-1]
    assert load_secret_keys(tmp_path, f"{CONFIGURED}{separator}{other}{separator}") == [
        CONFIGURED.encode(),
        other.encode(),
    ]
