"""Resolve Git LFS pointers: small text files that stand for large files stored elsewhere."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from ingot.kernel.errors import InvalidInput

POINTER_BYTES_MAX: Final = 1024
STDERR_CHARS_MAX: Final = 200
_POINTER_PREFIX: Final = b"version https://git-lfs.github.com/spec/v1\n"
_OID: Final = re.compile(rb"^oid sha256:([0-9a-f]{64})$", re.MULTILINE)
_SIZE: Final = re.compile(rb"^size ([0-9]{1,19})$", re.MULTILINE)


class PointerUnresolved(InvalidInput):
    """The file of a Git LFS pointer is not available."""

    code = "pointer_unresolved"
    hint = "Fetch the file in its repository with `git lfs pull`. The pointer itself was not sent."


class Pointer(msgspec.Struct, frozen=True):
    """The SHA-256 and the size of the file that a pointer stands for."""

    sha256: str
    size: int


def is_pointer(content: bytes) -> bool:
    """Return whether the complete content of a file is a Git LFS pointer."""
    return len(content) < POINTER_BYTES_MAX and content.startswith(_POINTER_PREFIX)


def read_pointer(content: bytes) -> Pointer:
    """Parse a pointer. Raises `PointerUnresolved` if its SHA-256 or size is missing."""
    oid, size = _OID.search(content), _SIZE.search(content)
    if oid is None or size is None:
        raise PointerUnresolved("the Git LFS pointer is malformed: it has no SHA-256 or no size")
    return Pointer(sha256=oid[1].decode(), size=int(size[1]))


def resolve_pointer(path: Path, content: bytes) -> Path:
    """Return the path of the file that a pointer stands for. A missing file is fetched with git-lfs.

    Raises `PointerUnresolved`.
    """
    pointer = read_pointer(content)
    git = git_folder(path)
    if git is None:
        raise PointerUnresolved(
            f"{path} is a Git LFS pointer outside of a Git repository",
            hint="Ingest it from its repository. The pointer itself was not sent.",
        )
    lfs_object = git / "lfs" / "objects" / pointer.sha256[:2] / pointer.sha256[2:4] / pointer.sha256
    if not _matches_pointer(lfs_object, pointer):
        _fetch_with_git_lfs(path, content)
        if not _matches_pointer(lfs_object, pointer):
            raise PointerUnresolved(f"{path} is a Git LFS pointer, and git-lfs did not fetch its file")
    return lfs_object


def git_folder(path: Path) -> Path | None:
    """Return the git folder of the repository around a path. For a worktree, that of its main repository."""
    for folder in path.absolute().parents:
        entry = folder / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():
            worktree_git_folder = folder / _read_text(entry).removeprefix("gitdir:").strip()
            common_dir = worktree_git_folder / "commondir"
            return worktree_git_folder / _read_text(common_dir) if common_dir.is_file() else worktree_git_folder
    return None


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape").strip()


def _matches_pointer(path: Path, pointer: Pointer) -> bool:
    """Return whether a file exists and has the size and the SHA-256 of the pointer."""
    if not path.is_file() or path.stat().st_size != pointer.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == pointer.sha256


def _fetch_with_git_lfs(path: Path, content: bytes) -> None:
    """Fetch the file of a pointer into the LFS cache of the repository. The working tree does not change."""
    if shutil.which("git") is None or shutil.which("git-lfs") is None:
        raise PointerUnresolved(
            f"{path} is a Git LFS pointer whose file is missing, and git-lfs is not installed",
            hint="Install git-lfs, or fetch the file in its repository with `git lfs pull`. "
            "The pointer itself was not sent.",
        )
    process = subprocess.run(
        ["git", "lfs", "smudge"],
        cwd=path.absolute().parent,
        input=content,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if process.returncode != 0:
        error_text = process.stderr.decode(errors="replace").strip()[-STDERR_CHARS_MAX:]
        raise PointerUnresolved(f"{path} is a Git LFS pointer, and git-lfs cannot fetch its file: {error_text}")
