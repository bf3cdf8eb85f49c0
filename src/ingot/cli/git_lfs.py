"""Git LFS pointers: small texts that stand for large files, and where those files are."""

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
    """A file is a Git LFS pointer, and the file that it stands for is not here."""

    code = "pointer_unresolved"
    hint = "Fetch it in its repository first: git lfs pull. The pointer itself was not sent."


class Pointer(msgspec.Struct, frozen=True):
    """What a pointer says of the file that it stands for: its SHA-256 and its size."""

    sha256: str
    size: int


def is_pointer(content: bytes) -> bool:
    """Whether these bytes, which are a whole file, stand for another."""
    return len(content) < POINTER_BYTES_MAX and content.startswith(_POINTER_PREFIX)


def read_pointer(content: bytes) -> Pointer:
    """What a pointer says. Raises `PointerUnresolved` for one that says nothing."""
    oid, size = _OID.search(content), _SIZE.search(content)
    if oid is None or size is None:
        raise PointerUnresolved("it is a Git LFS pointer that does not say which file it stands for")
    return Pointer(sha256=oid[1].decode(), size=int(size[1]))


def resolve_pointer(path: Path, content: bytes) -> Path:
    """Where the file is that the pointer at a path stands for; git-lfs fetches it when it is not here.

    Raises `PointerUnresolved`.
    """
    pointer = read_pointer(content)
    git = git_folder(path)
    if git is None:
        raise PointerUnresolved(
            f"{path} is a Git LFS pointer, and in no repository",
            hint="Ingest it where its repository is; the pointer itself was not sent.",
        )
    found = git / "lfs" / "objects" / pointer.sha256[:2] / pointer.sha256[2:4] / pointer.sha256
    if not _matches_pointer(found, pointer):
        _fetch_with_git_lfs(path, content)
        if not _matches_pointer(found, pointer):
            raise PointerUnresolved(f"{path} is a Git LFS pointer, and git-lfs did not fetch its file")
    return found


def git_folder(path: Path) -> Path | None:
    """The git folder of the repository that a path is in, of a worktree that of the repository it belongs to."""
    for folder in path.absolute().parents:
        entry = folder / ".git"
        if entry.is_dir():
            return entry
        if entry.is_file():
            named = folder / _read_text(entry).removeprefix("gitdir:").strip()
            shared = named / "commondir"
            return named / _read_text(shared) if shared.is_file() else named
    return None


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="surrogateescape").strip()


def _matches_pointer(path: Path, pointer: Pointer) -> bool:
    """Whether a file is what the pointer says."""
    if not path.is_file() or path.stat().st_size != pointer.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == pointer.sha256


def _fetch_with_git_lfs(path: Path, content: bytes) -> None:
    """Have git-lfs fetch what a pointer stands for; the files of the repository stay as they are."""
    if shutil.which("git") is None or shutil.which("git-lfs") is None:
        raise PointerUnresolved(
            f"{path} is a Git LFS pointer; its file is not here, and git-lfs is not installed",
            hint="Install git-lfs, or fetch the file in its repository: git lfs pull. The pointer itself was not sent.",
        )
    done = subprocess.run(
        ["git", "lfs", "smudge"],
        cwd=path.absolute().parent,
        input=content,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()[-STDERR_CHARS_MAX:]
        raise PointerUnresolved(f"{path} is a Git LFS pointer, and git-lfs cannot fetch its file: {said}")
