"""The build of this program: its release, and the commit that it was built from.

The build hook runs this file by its path, so it imports only the standard library.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

COMMIT_FILE: Final = "commit.txt"  # In the package of wheels and sdists. The build hook writes it.
COMMIT_CHARS: Final = 12
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Build(NamedTuple):
    """The release of this program, and the commit that it was built from, if that is known."""

    release: str
    commit: str | None

    @property
    def version(self) -> str:
        """The release and the beginning of the commit, such as `0.1.0+1a2b3c4d5e6f`."""
        return self.release if self.commit is None else f"{self.release}+{self.commit[:COMMIT_CHARS]}"


@cache
def read_build() -> Build:
    """Return the build of the installed package. In a checkout, the commit is that of the checkout."""
    package = Path(__file__).parents[1]
    return Build(version("ingot"), find_commit(package))


def find_commit(package: Path) -> str | None:
    """Return the commit of a package folder: from its commit file, or of the Git checkout in whose `src` it is."""
    try:
        text = (package / COMMIT_FILE).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        text = _head_of_checkout(package.parent.parent) if package.parent.name == "src" else ""
    commit = text.strip()
    return commit if _COMMIT.fullmatch(commit) else None


def _head_of_checkout(root: Path) -> str:
    """Return the commit that is checked out, or an empty text. Git itself may not be installed."""
    try:
        git = root / ".git"
        if git.is_file():  # A linked worktree: the file names its folder.
            git = root / _read(git).removeprefix("gitdir:").strip()
        head = _read(git / "HEAD")
        if not head.startswith("ref:"):
            return head
        branch = head.removeprefix("ref:").strip()
        common = git / _read(git / "commondir") if (git / "commondir").exists() else git
        if (common / branch).exists():
            return _read(common / branch)
        packed = (line.split(" ") for line in _read(common / "packed-refs").splitlines())
        return next((commit for commit, *names in packed if names == [branch]), "")
    except (OSError, UnicodeDecodeError):
        return ""


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()
