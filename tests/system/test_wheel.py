"""What is released: a wheel with all that belongs to it, on which alone the pages hold."""

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

from tests.processes import started
from tests.system.doc_pages import HERE, PAGES, PYTHON
from tests.system.programs import url_told

PACKAGE = HERE / "src" / "ingot"
LIBRARY = HERE / "docs" / "reference" / "library.md"
PAGES_RUN = [HERE / "README.md", PAGES / "write-a-worker.md"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist by the locked backend without a network. The build generates the client anew."""
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


def needed_by(requirements: list[str]) -> Iterator[str]:
    """The distributions that these name, and those that they need in turn."""
    seen: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        one = waiting.pop()
        if one.name in seen or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        seen.add(one.name)
        yield one.name
        waiting += [Requirement(text) for text in distribution(one.name).requires or []]


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment that holds the wheel, and what the wheel says that it needs."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    (packages,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as whole:
        (metadata,) = (name for name in whole.namelist() if name.endswith(".dist-info/METADATA"))
        needs = re.findall(r"^Requires-Dist: (.*)$", whole.read(metadata).decode(), re.MULTILINE)
    for name in needed_by(needs):
        for file in distribution(name).files or []:
            if ".." not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(str(file.locate()), packages / file)  # With its time: what is compiled is found so.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home / "bin" / "python")]
    for words in (["install", "--quiet", "--no-index", "--no-deps", str(wheel)], ["check"]):
        subprocess.run([*pip, *words], check=True, timeout=60, capture_output=True)
    return home / "bin"


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("INGOT_", "PYTHON", "COV_"))}


def running(folder: Path, *words: str, **environment: str) -> AbstractContextManager[subprocess.Popen[str]]:
    """A program, ended in the end."""
    return started(words, cwd=folder, env=clean_environment() | environment, stderr=subprocess.PIPE)


def test_the_wheel_contains_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as whole:
        shipped = {name for name in whole.namelist() if name.startswith("ingot/")}
        others = {Path(name).name for name in whole.namelist() if not name.startswith("ingot/")}
    ours = {
        f"ingot/{path.relative_to(PACKAGE)}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == ours
    assert {name for name in shipped if name.startswith("ingot/client/synchronous/")} == {
        name.replace("asynchronous", "synchronous") for name in shipped if name.startswith("ingot/client/asynchronous/")
    }
    assert {Path(name).suffix for name in shipped} >= {".py", ".sql", ".css", ".html", ".typed"}
    assert others == {"METADATA", "WHEEL", "entry_points.txt", "LICENSE", "RECORD"}


@pytest.mark.long
def test_the_examples_of_the_pages_work_with_the_wheel_alone(programs: Path, tmp_path: Path) -> None:
    for page in PAGES_RUN:
        folder = tmp_path / page.stem
        folder.mkdir()
        app, ask, *_ = PYTHON.findall(page.read_text(encoding="utf-8"))
        (folder / "app.py").write_text(app, encoding="utf-8")
        assert run(programs, folder, "import ingot; print(ingot.__file__)").startswith(str(programs.parent))
        with running(folder, str(programs / "ingot"), "serve", "--port", "0") as server:
            url = url_told(server)
            worker = [str(programs / "ingot"), "worker", "--app", "app:worker"]
            with running(folder, *worker, INGOT_SERVER_URL=url):
                assert run(programs, folder, ask, INGOT_SERVER_URL=url).startswith("Hello, Ada\n")
    example, *_ = PYTHON.findall(LIBRARY.read_text(encoding="utf-8"))
    assert "succeeded {'width': 200, 'of': 'cat.png'}" in run(programs, tmp_path, example)


def run(programs: Path, folder: Path, text: str, **environment: str) -> str:
    """What some Python prints in the new environment."""
    done = subprocess.run(
        [str(programs / "python"), "-c", text],
        cwd=folder, env=clean_environment() | environment,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
