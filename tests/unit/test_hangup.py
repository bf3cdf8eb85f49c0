"""SIGHUP in a process and its children, and under nohup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ingot.kernel.hangup import log_hangups, survive_hangup


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Restore the handler at the end."""
    previous = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, previous)


def test_a_process_survives_a_hangup_and_its_children_get_the_default() -> None:
    survive_hangup()
    os.kill(os.getpid(), signal.SIGHUP)
    program = "import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "True"


async def test_a_process_under_nohup_keeps_ignoring_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    survive_hangup()
    with log_hangups():
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
