"""The time report at the end of a test run, and missing components, which stop a run before the first test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.make_samples import FONTS
from tests import components, install, time_report

pytestmark = pytest.mark.long  # Starts pytest many times.
ROOT = Path(__file__).parents[2]
UNUSED_PLUGINS = ("cacheprovider", "schemathesis", "hypothesispytest", "anyio", "asyncio")
TESTS = """
import subprocess, sys

import pytest


@pytest.fixture(autouse=True)
def prepared():
    yield


@pytest.mark.parametrize("number", range({count}))
def test_burn(number):
    subprocess.run([sys.executable, "-c", "for _ in range(2_000_000): pass"], check=True)
"""


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, without the settings of this repository and without plugins that it does not need."""
    (folder / "pytest.ini").touch()
    unused = [word for name in UNUSED_PLUGINS for word in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", *unused, f"--rootdir={folder}", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "INGOT_"))}
    environment = inherited | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_prints_its_slowest_files_its_cpu_time_and_the_budget(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_large.py").write_text(TESTS.format(count=3))
    (tmp_path / "test_small.py").write_text(TESTS.format(count=1))
    run = run_pytest(tmp_path, "-p", "tests.time_report", "-n", str(workers), INGOT_TEST_BUDGET_SECONDS="600")
    assert run.returncode == 0, run.stdout
    assert "The 2 slowest of 2 files" in run.stdout
    assert re.search(r"\d s      3 tests  test_large.py\n.*\d s      1 tests  test_small.py\n", run.stdout)
    groups = {name: float(seconds) for name, seconds in re.findall(r"(Python|other programs) (\d+) s", run.stdout)}
    assert set(groups) == {"Python", "other programs"}
    assert re.search(r"^Budget: \d+ s of 600 s\.$", run.stdout, re.MULTILINE)


def test_a_run_without_a_budget_prints_no_report(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(TESTS.format(count=1))
    assert "where the time went" not in run_pytest(tmp_path, "-p", "tests.time_report").stdout


def test_a_run_over_its_budget_warns_and_passes(tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(TESTS.format(count=1))
    environment = {"INGOT_TEST_BUDGET_SECONDS": "10", "INGOT_TEST_STARTED": "0"}
    run = run_pytest(tmp_path, "-p", "tests.time_report", **environment)
    assert run.returncode == 0, run.stdout
    assert re.search(
        r"^WARNING: Budget: \d+ s of 10 s\. The budget is exceeded by \d+ s\. See ", run.stdout, re.MULTILINE
    )


def test_the_cpu_time_of_a_process_includes_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\n"
    child = f"{burn}print(flush=True); input()"
    parent = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\n{child}"
    monkeypatch.setenv(time_report.FOLDER_VARIABLE, str(tmp_path))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", parent], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.readline()
        time_report.record_postgres(process.pid)
        time_report.record_postgres(process.pid)
        process.communicate(b"\n")
    assert time_report.recorded(tmp_path)["PostgreSQL"] >= 4 * 0.29


def run_own_pytest(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tests of this repository."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:schemathesis", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "INGOT_"))}
    return subprocess.run(command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, check=False)


# -- missing components-----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_component_stops_the_run_before_the_first_test(tmp_path: Path, workers: int) -> None:
    run = run_own_pytest("-n", str(workers), "tests/unit/test_samples.py", PATH=str(tmp_path))
    assert run.returncode == pytest.ExitCode.INTERRUPTED, run.stdout + run.stderr
    assert components.COMPONENTS["tesseract"].sentence in run.stdout + run.stderr
    assert not re.search(r"\d+ (passed|failed|error)", run.stdout)


def test_tests_that_do_not_need_a_missing_component_run(tmp_path: Path) -> None:
    run = run_own_pytest("-n", "0", "tests/unit/test_backoff.py", PATH=str(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_missing_component_is_named_once() -> None:
    def present() -> str:
        return "found"

    def absent() -> None:
        raise AssertionError("It is missing.")

    def absent_too() -> None:
        raise AssertionError("That is missing.")

    assert install.missing([absent, present, absent_too, absent]) == ["It is missing.", "That is missing."]


def test_the_sentence_about_a_missing_component_names_the_package() -> None:
    sentence = "PostgreSQL is missing. Install Debian's package postgresql: apt-get install postgresql"
    assert components.COMPONENTS["postgres"].sentence == sentence


def test_folders_and_parameters_imply_markers() -> None:
    here = components.HERE
    assert components.implied_markers(here / "unit" / "test_ids.py", {"number": 3, "word": "a-b"}) == set()
    assert components.implied_markers(here / "unit" / "test_ids.py", {"where": "postgres-s3"}) == {"postgres", "s3"}
    assert components.implied_markers(here / "engines" / "postgres" / "test_json.py", {}) == {"postgres"}


def test_the_fonts_folder_is_that_of_the_samples() -> None:
    assert components.FONTS_FOLDER == FONTS


@pytest.mark.postgres
def test_a_run_in_one_process_exits_cleanly_when_its_last_test_needs_no_component() -> None:
    first, last = "tests/engines/postgres/test_worker_roles.py", "tests/unit/test_clock.py"
    run = run_own_pytest("-q", "-x", "-k", "test_a_role or test_clock", first, last)
    assert (run.returncode, " passed" in run.stdout) == (0, True), run.stdout + run.stderr
