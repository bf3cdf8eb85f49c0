"""The secret key: made once, kept whole, for the server alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stat import S_IMODE
from threading import Barrier

import pytest

from ingot.kernel.secret_key import SecretKeyUnusable, load_secret_keys

TOLD = "0123456789abcdef" * 2


def test_a_key_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    key = load_secret_keys(folder)[0]
    assert len(key) == 64
    assert load_secret_keys(folder)[0] == key
    assert S_IMODE((folder / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["secret.key"]
    assert load_secret_keys(tmp_path / "other")[0] != key


def test_a_key_that_is_told_counts_and_writes_nothing(tmp_path: Path) -> None:
    assert load_secret_keys(tmp_path, TOLD)[0] == TOLD.encode()
    assert list(tmp_path.iterdir()) == []


def test_a_key_can_be_told_as_it_stands_in_the_file(tmp_path: Path) -> None:
    key = load_secret_keys(tmp_path)[0]
    assert load_secret_keys(tmp_path, (tmp_path / "secret.key").read_text())[0] == key


def test_all_who_ask_at_once_get_the_same(tmp_path: Path) -> None:
    barrier = Barrier(16)

    def ask(folder: Path) -> bytes:
        barrier.wait()
        return load_secret_keys(folder)[0]

    with ThreadPoolExecutor(16) as pool:
        for number in range(10):
            folder = tmp_path / str(number)
            assert len(set(pool.map(ask, [folder] * 16))) == 1
            assert [path.name for path in folder.iterdir()] == ["secret.key"]


def test_a_key_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for name in ("fsync", "link"):

        def noted(*given: object, name: str = name, real: object = getattr(os, name)) -> object:
            steps.append(name)
            return real(*given)  # type: ignore[operator]

        monkeypatch.setattr(os, name, noted)
    load_secret_keys(tmp_path)[0]
    assert steps == ["fsync", "link", "fsync"]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_key_that_could_not_be_made_leaves_nothing(
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
def test_what_is_no_key_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret.key"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(SecretKeyUnusable):
        load_secret_keys(tmp_path)[0]
    assert path.read_text(encoding="utf-8") == text
    with pytest.raises(SecretKeyUnusable):
        load_secret_keys(tmp_path, text)[0]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_secret_keys(tmp_path)[0]
    (tmp_path / "secret.key").chmod(0o640)
    with pytest.raises(SecretKeyUnusable, match="others"):
        load_secret_keys(tmp_path)[0]


def test_a_folder_that_is_none_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SecretKeyUnusable):
        load_secret_keys(tmp_path / "file")[0]


@pytest.mark.parametrize("between", [",", "\n", " , ", ",\n\n", "\r\n"])
def test_older_keys_follow_the_current_one(tmp_path: Path, between: str) -> None:
    other = TOLD[::-1]
    assert load_secret_keys(tmp_path, f"{TOLD}{between}{other}{between}") == [TOLD.encode(), other.encode()]
