"""A test run that was started with ignored signals, as by nohup or in the background of a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOW_DEFAULTS = """
import signal
names = "SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE"
ignored = [name for name in names if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN]
print("ignored:", *ignored)
"""
# Python itself ignores SIGPIPE, so a shell shows whether a child has the default handler.
TEST_OF_A_CHILD = f"""
import os, signal, subprocess, sys

def test_a_child_has_the_default_handlers():
    command = [sys.executable, "-c", {SHOW_DEFAULTS!r}]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "ignored: SIGPIPE\\n"
    for name in ("HUP", "INT", "QUIT", "TERM", "PIPE"):
        done = subprocess.run(["sh", "-c", f"kill -{{name}} $$; sleep 10"], check=False)
        assert done.returncode == -getattr(signal, f"SIG{{name}}"), name

def test_the_run_itself_still_ignores_what_it_ignored():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.kill(os.getpid(), number)
        os.kill(os.getppid(), number)
"""


def test_children_of_a_run_with_ignored_signals_have_the_default_handlers(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.signals import let_children_receive_signals\n"
        "def pytest_configure(config):\n    let_children_receive_signals()\n",
        encoding="utf-8",
    )
    (tmp_path / "test_child.py").write_text(TEST_OF_A_CHILD, encoding="utf-8")
    options = ["-p", "no:cacheprovider", "-p", "xdist", "-n", "1", "--rootdir", str(tmp_path)]
    run = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Importing plugins takes seconds.
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT HUP QUIT; exec "$@"', "sh", *run],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr
