"""PDFs that people really made: the manuals in some of Debian's packages, fetched and unpacked, not installed."""

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
DONE: Final = "fetched"


def corpus() -> Path:
    """A folder of all PDFs in these packages. Raises with a sentence that says how to get them."""
    expect_marker("corpus")
    CORPUS_FOLDER.mkdir(parents=True, exist_ok=True)
    with (CORPUS_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, wanted = CORPUS_FOLDER / DONE, " ".join(PACKAGES)
        if not done.exists() or done.read_text() != wanted:
            shutil.rmtree(CORPUS_FOLDER / "files", ignore_errors=True)
            for package in PACKAGES:
                _fetch(package, CORPUS_FOLDER / "files" / package)
            done.write_text(wanted)
    return CORPUS_FOLDER / "files"


def _fetch(package: str, folder: Path) -> None:
    """Put the PDFs of a package into a folder, each under its own name."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        try:
            _run(["apt-get", "download", "-qq", package], place)
        except AssertionError:
            _run(["apt-get", "update", "-qq"], place)
            _run(["apt-get", "download", "-qq", package], place)
        (deb,) = Path(place).glob("*.deb")
        _run(["dpkg-deb", "-x", str(deb), "tree"], place)
        for path in sorted((Path(place) / "tree").rglob("*.pdf*")):
            if path.is_symlink() or not path.is_file():
                continue
            to = folder / path.name.removesuffix(".gz")
            if path.suffix == ".gz":
                to.write_bytes(gzip.decompress(path.read_bytes()))
            else:
                shutil.copyfile(path, to)


def _run(command: list[str], folder: str) -> None:
    try:
        ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        ran = subprocess.CompletedProcess(command, 1, "", "there is no such program")
    why = f"{' '.join(command)} failed: {ran.stderr[-300:].strip()}"
    assert ran.returncode == 0, f"{COMPONENTS['corpus'].sentence} ({why})"
