"""`ingot serve` as people run it: a process of its own, a real socket, real signals."""

from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

SERVE = [sys.executable, "-m", "ingot", "serve"]


@contextmanager
def served(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server on a free port, and where it is; killed at the end if it still runs."""
    with subprocess.Popen([*SERVE, "--data", str(folder), "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://[^\s\"]+", line):
                    yield process, found[0]
                    break
            else:
                pytest.fail("the server did not start")
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_ends_when_it_is_asked_to(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path / "data") as (process, url):
        assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
        process.send_signal(number)
        assert process.wait(timeout=15) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_the_first_start_makes_the_operators_token_and_later_ones_keep_it(tmp_path: Path) -> None:
    path = tmp_path / "data" / "operator.token"
    with served(tmp_path / "data") as (_, url):
        token = path.read_text(encoding="utf-8").strip()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        headers = {"authorization": f"Bearer {token}"}
        made = httpx.post(f"{url}/api/v1/jobs", headers=headers, json={"type": "noop", "payload": {"kept": True}})
        assert made.status_code == 201
    # Killed: what was acknowledged is there.
    with served(tmp_path / "data") as (_, url):
        assert path.read_text(encoding="utf-8").strip() == token
        job = httpx.get(f"{url}/api/v1/jobs/{made.json()['id']}", headers=headers).json()
    assert (job["status"], job["payload"]) == ("queued", {"kept": True})


def test_a_busy_port_is_told_with_a_hint(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        done = subprocess.run(
            [*SERVE, "--data", str(tmp_path / "data"), "--port", port],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "Hint: Choose another port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_in_use_is_told_with_a_hint(tmp_path: Path) -> None:
    with served(tmp_path / "data"):
        done = subprocess.run(
            [*SERVE, "--data", str(tmp_path / "data"), "--port", "0"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert done.returncode == 6
    assert "Hint:" in done.stderr
    assert "Traceback" not in done.stderr
