"""Git LFS pointers, in real repositories."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from ingot.cli.document_files import DocumentFile, read_document
from ingot.cli.git_lfs import PointerUnresolved, git_folder, is_pointer, read_pointer

pytestmark = pytest.mark.git
CONTENT = b"%PDF-1.7 the real one"
OID = hashlib.sha256(CONTENT).hexdigest()
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize {len(CONTENT)}\n".encode()
# What `git lfs smudge` does: it stores the file that the pointer on stdin stands for, and writes it.
GIT_LFS = f"""#!/bin/sh
[ "$1" = smudge ] || exit 2
[ -f "$REMOTE" ] || {{ echo "the remote is gone" >&2; exit 3; }}
common=$(git rev-parse --path-format=absolute --git-common-dir)
mkdir -p "$common/lfs/objects/{OID[:2]}/{OID[2:4]}"
cp "$REMOTE" "$common/lfs/objects/{OID[:2]}/{OID[2:4]}/{OID}"
cat "$REMOTE"
"""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init")
    (folder / "deep").mkdir()
    (folder / "deep" / "a.pdf").write_bytes(POINTER)
    git(folder, "add", ".")
    git(folder, "commit", "-m", "a pointer")
    return folder


def store(git_folder: Path, content: bytes = CONTENT) -> None:
    place = git_folder / "lfs" / "objects" / OID[:2] / OID[2:4]
    place.mkdir(parents=True)
    (place / OID).write_bytes(content)


def document(path: Path) -> DocumentFile:
    return DocumentFile(path=path, relative_path=Path(path.name), type="pdf", size=path.stat().st_size)


def test_a_pointer_says_which_file_it_stands_for() -> None:
    known = read_pointer(POINTER)
    assert (known.sha256, known.size, is_pointer(POINTER)) == (OID, len(CONTENT), True)
    extended = POINTER.replace(b"oid", b"ext-0-foo sha256:" + b"0" * 64 + b"\noid")
    assert read_pointer(extended) == known
    assert not is_pointer(POINTER.ljust(1024))
    assert not is_pointer(CONTENT)


@pytest.mark.parametrize("damaged", [POINTER[:50], POINTER.replace(b"sha256", b"md5"), POINTER.replace(b"size", b"s")])
def test_a_pointer_that_says_nothing_is_not_sent(repository: Path, damaged: bytes) -> None:
    (repository / "b.pdf").write_bytes(damaged)
    with pytest.raises(PointerUnresolved):
        read_document(document(repository / "b.pdf"))


def test_the_file_is_found_in_the_repository_and_nothing_is_changed(repository: Path) -> None:
    store(repository / ".git")
    assert read_document(document(repository / "deep" / "a.pdf")) == CONTENT
    assert (repository / "deep" / "a.pdf").read_bytes() == POINTER


def test_a_worktree_shares_the_files_of_its_repository(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", str(tmp_path / "beside"))
    store(repository / ".git")
    assert read_document(document(tmp_path / "beside" / "deep" / "a.pdf")) == CONTENT


def test_a_submodule_has_its_own(repository: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    git(above, "init")
    git(above, "-c", "protocol.file.allow=always", "submodule", "add", str(repository), "inner")
    known = git_folder(above / "inner" / "deep" / "a.pdf")
    assert known is not None
    assert known.resolve() == (above / ".git" / "modules" / "inner").resolve()
    store(known)
    assert read_document(document(above / "inner" / "deep" / "a.pdf")) == CONTENT


def test_without_git_lfs_it_is_told_what_to_do(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PointerUnresolved, match="git-lfs is not installed") as told:
        read_document(document(repository / "deep" / "a.pdf"))
    assert "git lfs pull" in told.value.hint


@pytest.mark.parametrize("there", [True, False])
def test_git_lfs_fetches_what_is_not_there(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git-lfs").write_text(GIT_LFS, encoding="utf-8")
    (tmp_path / "bin" / "git-lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("REMOTE", str(tmp_path / "remote"))
    store(repository / ".git", CONTENT[:-1])  # A file that is not whole counts as none.
    if not there:
        with pytest.raises(PointerUnresolved, match="the remote is gone"):
            read_document(document(repository / "deep" / "a.pdf"))
        return
    (tmp_path / "remote").write_bytes(CONTENT)
    assert read_document(document(repository / "deep" / "a.pdf")) == CONTENT
    assert (repository / "deep" / "a.pdf").read_bytes() == POINTER


def test_a_pointer_outside_of_a_repository_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(POINTER)
    with pytest.raises(PointerUnresolved, match="Git LFS pointer"):
        read_document(document(tmp_path / "a.pdf"))


def test_an_object_of_other_bytes_is_not_sent(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(repository / ".git", CONTENT[::-1])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PointerUnresolved, match="git-lfs is not installed"):
        read_document(document(repository / "deep" / "a.pdf"))
