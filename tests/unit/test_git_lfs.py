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
# As `git lfs smudge` does, it stores and prints the file of the pointer on stdin.
GIT_LFS = f"""#!/bin/sh
[ "$1" = smudge ] || exit 2
[ -f "$REMOTE" ] || {{ echo "the remote is gone" >&2; exit 3; }}
common=$(git rev-parse --path-format=absolute --git-common-dir)
mkdir -p "$common/lfs/objects/{OID[:2]}/{OID[2:4]}"
cp "$REMOTE" "$common/lfs/objects/{OID[:2]}/{OID[2:4]}/{OID}"
cat "$REMOTE"
"""


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


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
    object_folder = git_folder / "lfs" / "objects" / OID[:2] / OID[2:4]
    object_folder.mkdir(parents=True)
    (object_folder / OID).write_bytes(content)


def document(path: Path) -> DocumentFile:
    return DocumentFile(path=path, relative_path=Path(path.name), type="pdf", size=path.stat().st_size)


def test_a_pointer_has_the_digest_and_size_of_its_file() -> None:
    pointer = read_pointer(POINTER)
    assert (pointer.sha256, pointer.size, is_pointer(POINTER)) == (OID, len(CONTENT), True)
    extended = POINTER.replace(b"oid", b"ext-0-foo sha256:" + b"0" * 64 + b"\noid")
    assert read_pointer(extended) == pointer
    assert not is_pointer(POINTER.ljust(1024))
    assert not is_pointer(CONTENT)


@pytest.mark.parametrize("damaged", [POINTER[:50], POINTER.replace(b"sha256", b"md5"), POINTER.replace(b"size", b"s")])
def test_an_incomplete_pointer_is_rejected(repository: Path, damaged: bytes) -> None:
    (repository / "b.pdf").write_bytes(damaged)
    with pytest.raises(PointerUnresolved):
        read_document(document(repository / "b.pdf"))


def test_the_file_of_a_pointer_is_read_from_the_repository(repository: Path) -> None:
    store(repository / ".git")
    assert read_document(document(repository / "deep" / "a.pdf")) == CONTENT
    assert (repository / "deep" / "a.pdf").read_bytes() == POINTER


def test_a_worktree_shares_the_files_of_its_repository(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", str(tmp_path / "beside"))
    store(repository / ".git")
    assert read_document(document(tmp_path / "beside" / "deep" / "a.pdf")) == CONTENT


def test_a_submodule_has_its_own_files(repository: Path, tmp_path: Path) -> None:
    above = tmp_path / "above"
    above.mkdir()
    git(above, "init")
    git(above, "-c", "protocol.file.allow=always", "submodule", "add", str(repository), "inner")
    module_folder = git_folder(above / "inner" / "deep" / "a.pdf")
    assert module_folder is not None
    assert module_folder.resolve() == (above / ".git" / "modules" / "inner").resolve()
    store(module_folder)
    assert read_document(document(above / "inner" / "deep" / "a.pdf")) == CONTENT


def test_without_git_lfs_a_missing_file_gets_a_hint(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PointerUnresolved, match="git-lfs is not installed") as unresolved:
        read_document(document(repository / "deep" / "a.pdf"))
    assert "git lfs pull" in unresolved.value.hint


@pytest.mark.parametrize("remote_exists", [True, False])
def test_git_lfs_fetches_a_missing_file(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote_exists: bool
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git-lfs").write_text(GIT_LFS, encoding="utf-8")
    (tmp_path / "bin" / "git-lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("REMOTE", str(tmp_path / "remote"))
    store(repository / ".git", CONTENT[:-1])  # An incomplete file counts as missing.
    if not remote_exists:
        with pytest.raises(PointerUnresolved, match="the remote is gone"):
            read_document(document(repository / "deep" / "a.pdf"))
        return
    (tmp_path / "remote").write_bytes(CONTENT)
    assert read_document(document(repository / "deep" / "a.pdf")) == CONTENT
    assert (repository / "deep" / "a.pdf").read_bytes() == POINTER


def test_a_pointer_outside_a_repository_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(POINTER)
    with pytest.raises(PointerUnresolved, match="Git LFS pointer"):
        read_document(document(tmp_path / "a.pdf"))


def test_a_stored_file_with_other_bytes_is_not_used(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(repository / ".git", CONTENT[::-1])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PointerUnresolved, match="git-lfs is not installed"):
        read_document(document(repository / "deep" / "a.pdf"))
