"""The commit of a build, found without Git."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from ingot.kernel.build import COMMIT_CHARS, COMMIT_FILE, Build, find_commit, read_build

COMMIT = "1a2b3c4d5e6f" + "0" * 28
OTHER = "f" * 40


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An empty package in the `src` folder of a checkout."""
    folder = tmp_path / "checkout" / "src" / "ingot"
    folder.mkdir(parents=True)
    return folder


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_the_commit_of_a_checkout_is_that_of_its_branch(package: Path) -> None:
    git = package.parents[1] / ".git"
    write(git / "HEAD", "ref: refs/heads/topic/one\n")
    assert find_commit(package) is None
    write(
        git / "packed-refs",
        f"# pack-refs with: peeled\n{OTHER} refs/heads/one\n{COMMIT} refs/heads/topic/one\n^{OTHER}\n",
    )
    assert find_commit(package) == COMMIT
    write(git / "refs" / "heads" / "topic" / "one", f"{OTHER}\n")
    assert find_commit(package) == OTHER


def test_a_detached_head_names_its_commit(package: Path) -> None:
    write(package.parents[1] / ".git" / "HEAD", f"{COMMIT}\n")
    assert find_commit(package) == COMMIT


def test_a_linked_worktree_has_the_branches_of_its_repository(package: Path, tmp_path: Path) -> None:
    main = tmp_path / "main" / ".git"
    write(package.parents[1] / ".git", f"gitdir: {main / 'worktrees' / 'checkout'}\n")
    write(main / "worktrees" / "checkout" / "HEAD", "ref: refs/heads/topic\n")
    write(main / "worktrees" / "checkout" / "commondir", "../..\n")
    write(main / "refs" / "heads" / "topic", f"{COMMIT}\n")
    assert find_commit(package) == COMMIT


def test_an_installed_package_has_a_commit_file_or_no_commit(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "ingot"
    package.mkdir(parents=True)
    write(tmp_path.parent / ".git" / "HEAD", OTHER)
    assert find_commit(package) is None
    write(package / COMMIT_FILE, f"{COMMIT}\n")
    assert find_commit(package) == COMMIT
    write(package / COMMIT_FILE, "not a commit\n")
    assert find_commit(package) is None


def test_the_version_of_a_build_contains_the_beginning_of_its_commit() -> None:
    assert Build("0.1.0", None).version == "0.1.0"
    assert Build("0.1.0", COMMIT).version == f"0.1.0+{COMMIT[:COMMIT_CHARS]}" == "0.1.0+1a2b3c4d5e6f"
    assert read_build().release == version("ingot")
