"""The wheel: it contains every file of the package, and the examples of the pages work with it alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ingot.kernel.build import COMMIT_FILE, find_commit
from tests.processes import started
from tests.system.doc_pages import HERE, PAGES, PYTHON
from tests.system.programs import wait_for_url

PACKAGE = HERE / "src" / "ingot"
LIBRARY = HERE / "docs" / "reference" / "library.md"
PAGES_RUN = [HERE / "README.md", PAGES / "write-a-worker.md"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist by the locked backend without a network. The build generates the sync client."""
    folder = tmp_path_factory.mktemp("dist")
    build("sdist", HERE, folder)
    (sdist,) = folder.glob("ingot-*.tar.gz")
    subprocess.run(["tar", "--extract", "--file", sdist, "--directory", folder], check=True, timeout=60)
    source = folder / sdist.name.removesuffix(".tar.gz")
    shutil.rmtree(source / "src" / "ingot" / "client" / "synchronous")
    build("wheel", source, folder)
    (made,) = folder.glob("ingot-*.whl")
    return made


def build(target: str, source: Path, folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)],
        cwd=source, check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def all_requirements(requirements: list[str]) -> Iterator[str]:
    """Yield the names of the required distributions and of all their requirements."""
    names: set[str] = set()
    pending = [Requirement(text) for text in requirements]
    while pending:
        requirement = pending.pop()
        if requirement.name in names or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        names.add(requirement.name)
        yield requirement.name
        pending += [Requirement(text) for text in distribution(requirement.name).requires or []]


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel and its requirements."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needs = re.findall(r"^Requires-Dist: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
    for name in all_requirements(needs):
        for file in distribution(name).files or []:
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(
                    str(file.locate()), packages / file
                )  # Keeps the modification time, so that the compiled file stays valid.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
    for arguments in (["install", "--quiet", "--no-index", "--no-deps", str(wheel)], ["check"]):
        subprocess.run([*pip, *arguments], check=True, timeout=60, capture_output=True)
    return home / "bin"


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("INGOT_", "PYTHON", "COV_"))}


def run_in_background(
    folder: Path, *arguments: str, **environment: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Run a program, and kill it at the end of the block."""
    return started(arguments, cwd=folder, env=clean_environment() | environment, stderr=subprocess.PIPE)


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("ingot/")}
        other_files = {Path(name).name for name in archive.namelist() if not name.startswith("ingot/")}
        commit_in_wheel = archive.read(f"ingot/{COMMIT_FILE}").decode() if f"ingot/{COMMIT_FILE}" in shipped else None
    source_files = {
        f"ingot/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    commit = find_commit(PACKAGE)
    commit_files = set() if commit is None else {f"ingot/{COMMIT_FILE}"}
    assert shipped == source_files | commit_files
    assert commit is None or commit_in_wheel == f"{commit}\n"
    assert {name for name in shipped if name.startswith("ingot/client/synchronous/")} == {
        name.replace("asynchronous", "synchronous") for name in shipped if name.startswith("ingot/client/asynchronous/")
    }
    assert {Path(name).suffix for name in shipped} >= {".py", ".sql", ".css", ".html", ".typed"}
    assert other_files == {"METADATA", "WHEEL", "entry_points.txt", "LICENSE", "RECORD"}


@pytest.mark.long
def test_the_examples_of_the_pages_work_with_the_wheel_alone(programs: Path, tmp_path: Path) -> None:
    for page in PAGES_RUN:
        folder = tmp_path / page.stem
        folder.mkdir()
        app, client_code, *_ = PYTHON.findall(page.read_text(encoding="utf-8"))
        (folder / "app.py").write_text(app, encoding="utf-8")
        assert run(programs, folder, "import ingot; print(ingot.__file__)").startswith(str(programs.parent))
        with run_in_background(folder, str(programs / "ingot"), "serve", "--port", "0") as server:
            url = wait_for_url(server)
            worker = [str(programs / "ingot"), "worker", "--app", "app:worker"]
            with run_in_background(folder, *worker, INGOT_SERVER_URL=url):
                assert run(programs, folder, client_code, INGOT_SERVER_URL=url).startswith("Hello, Ada\n")
    example, *_ = PYTHON.findall(LIBRARY.read_text(encoding="utf-8"))
    assert "succeeded {'width': 200, 'of': 'cat.png'}" in run(programs, tmp_path, example)


def run(programs: Path, folder: Path, text: str, **environment: str) -> str:
    """Run Python code in the new environment, and return its output."""
    done = subprocess.run(
        [str(programs / "python"), "-c", text],
        cwd=folder, env=clean_environment() | environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
