"""The shell and Python examples of the pages, run against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.doc_pages import HERE, PAGES, PYTHON
from tests.system.programs import served, worker
from tests.waiting import SECONDS_MAX

STREAM_ENDED = 28  # Exit code of curl after its --max-time.
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shell_blocks(page: str) -> list[str]:
    """Return the shell blocks of a page."""
    return BLOCK.findall((PAGES / page).read_text(encoding="utf-8"))


def run_page(page: str, folder: Path, url: str) -> list[str]:
    """Run all blocks of a page in one shell beside the data folder of a server. Return the output of each block."""
    host = url.removeprefix("http://")
    separator = f'\ncode=$?; [ $code = 0 ] || [ $code = {STREAM_ENDED} ] || exit $code; printf "\\036"\n'
    script = separator.join([*(step.replace("localhost:8080", host) for step in shell_blocks(page)), ""])
    variables = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "INGOT_SERVER_URL": url}
    done = subprocess.run(
        ["bash", "-u", "-o", "pipefail", "-c", script],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.split("\036")[:-1]


PAGES_TYPED = [
    "serve.md",
    "run-workers.md",
    "watch-a-server.md",
    "let-people-in.md",
    "store-files.md",
    "ingest-a-folder.md",
    "../reference/audit.md",
]


@pytest.mark.parametrize("page", PAGES_TYPED)
def test_the_shell_commands_of_a_page_run_from_top_to_bottom(tmp_path: Path, page: str) -> None:
    with served(tmp_path / "data") as (_, url):
        printed = run_page(page, tmp_path, url)
    assert len(printed) == len(shell_blocks(page)) > 2
    for step, message in zip(shell_blocks(page), printed, strict=True):
        assert '"code":' not in message, f"{step}\n{message}"
        if "curl -s -w" in step:
            assert message.endswith("\n")
    output = "".join(printed)
    if page in ("serve.md", "run-workers.md"):
        assert '"status":"succeeded"' in output
        assert "Hello, " in output
    if page == "ingest-a-folder.md":
        assert ("papers/2026/march.pdf" in output, "owt 7.1-FDP%" in output, '"outputs":' in output) == (
            True,
            True,
            True,
        )
    if page == "store-files.md":
        assert ("reports/2026/march.csv" in output, "206\n" in output, "upload-offset: 4" in output) == (
            True,
            True,
            True,
        )


@pytest.mark.parametrize(
    ("page", "blocks", "message"),
    [
        ("how-to/write-a-worker.md", (0, 1), "Hello, Ada\n"),
        ("how-to/write-a-worker.md", (2, 3), "HELLO, ADA\n"),
        ("how-to/write-a-worker.md", (4, 5), "page 1, by attempt 1\npage 2, by attempt 1\npage 3, by attempt 2\n"),
        ("../README.md", (0, 1), "Hello, Ada\n"),
        ("../README.md", (2, 3), "HELLO, ADA\n"),
    ],
)
def test_the_worker_and_client_examples_of_a_page_work(
    tmp_path: Path, page: str, blocks: tuple[int, int], message: str
) -> None:
    examples = PYTHON.findall((PAGES.parent / page).read_text(encoding="utf-8"))
    app, client_code = (examples[block] for block in blocks)
    (tmp_path / "app.py").write_text(app, encoding="utf-8")
    with served(tmp_path / "data") as (_, url):
        environment = {**os.environ, "INGOT_SERVER_URL": url}
        with worker("--app", "app:worker", url=url, cwd=tmp_path, stderr=subprocess.DEVNULL):
            client = subprocess.run(
                [sys.executable, "-c", client_code],
                cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=40, check=False,
            )  # fmt: skip
    assert (client.returncode, client.stderr) == (0, "")
    assert client.stdout.startswith(message)


def test_the_pdf_example_of_the_page_works(tmp_path: Path) -> None:
    code = PYTHON.findall((PAGES / "convert-documents.md").read_text(encoding="utf-8"))[0]
    with served(tmp_path / "data") as (_, url):
        environment = {**os.environ, "INGOT_SERVER_URL": url, "INGOT_DATA": str(tmp_path / "data")}
        with worker("--handlers", "pdf", url=url, cwd=tmp_path, stderr=subprocess.DEVNULL):
            client = subprocess.run(
                [sys.executable, "-c", code],
                cwd=HERE, env=environment, capture_output=True, text=True, timeout=40, check=False,
            )  # fmt: skip
    assert (client.returncode, client.stderr) == (0, "")
    assert client.stdout.startswith("---\ntitle: ")


def test_the_python_example_of_store_files_works(tmp_path: Path) -> None:
    (code,) = PYTHON.findall((PAGES / "store-files.md").read_text(encoding="utf-8"))
    (tmp_path / "handbook.pdf").write_bytes(b"%PDF-1.7")
    with served(tmp_path / "data") as (_, url):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "INGOT_SERVER_URL": url},
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("books/handbook.pdf application/pdf\n")
    assert (tmp_path / "copy.pdf").read_bytes() == b"%PDF-1.7"


PYTEST_INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


def test_the_example_tests_of_the_page_pass_and_can_fail(tmp_path: Path) -> None:
    app, test, async_test = PYTHON.findall((PAGES / "test-your-handlers.md").read_text(encoding="utf-8"))
    (tmp_path / "pytest.ini").write_text(PYTEST_INI, encoding="utf-8")
    (tmp_path / "test_app.py").write_text(test, encoding="utf-8")
    (tmp_path / "test_awaiting.py").write_text(async_test, encoding="utf-8")

    def run_tests(app: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "app.py").write_text(app, encoding="utf-8")
        plugins = ["-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *options],
            cwd=tmp_path, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # Our own plugins load slowly.
            capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip

    done = run_tests(app)
    assert (done.returncode, "6 passed" in done.stdout) == (0, True), done.stdout
    wrong = run_tests(app.replace("Hello, ", "Hallo, "), "-k", "greets")
    assert "1 failed" in wrong.stdout
