"""Real PDFs: the manuals in some Debian packages, downloaded and unpacked, not installed."""

from __future__ import annotations

import fcntl
import gzip
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.components import COMPONENTS, CORPUS_FOLDER, expect_marker

PACKAGES: Final = ("asymptote-doc", "bash-doc", "debian-policy", "graphviz-doc", "ledger", "libmpfr-doc")
STAMP: Final = "fetched"


def corpus() -> Path:
    """Return a folder of all PDFs in these packages. Raises an error that explains how to get them."""
    expect_marker("corpus")
    CORPUS_FOLDER.mkdir(parents=True, exist_ok=True)
    with (CORPUS_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = CORPUS_FOLDER / STAMP, " ".join(PACKAGES)
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(CORPUS_FOLDER / "files", ignore_errors=True)
            for package in PACKAGES:
                _fetch(package, CORPUS_FOLDER / "files" / package)
            stamp.write_text(wanted)
    return CORPUS_FOLDER / "files"


def _fetch(package: str, folder: Path) -> None:
    """Put the PDFs of a package into a folder."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as download_folder:
        try:
            _run(["apt-get", "download", "-qq", package], download_folder)
        except AssertionError:
            _run(["apt-get", "update", "-qq"], download_folder)
            _run(["apt-get", "download", "-qq", package], download_folder)
        (deb,) = Path(download_folder).glob("*.deb")
        _run(["dpkg-deb", "-x", str(deb), "tree"], download_folder)
        for path in sorted((Path(download_folder) / "tree").rglob("*.pdf*")):
            if path.is_symlink() or not path.is_file():
                continue
            target = folder / path.name.removesuffix(".gz")
            if path.suffix == ".gz":
                target.write_bytes(gzip.decompress(path.read_bytes()))
            else:
                shutil.copyfile(path, target)


def _run(command: list[str], folder: str) -> None:
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        result = subprocess.CompletedProcess(command, 1, "", "program not found")
    reason = f"{' '.join(command)} failed: {result.stderr[-300:].strip()}"
    assert result.returncode == 0, f"{COMPONENTS['corpus'].sentence} ({reason})"
