"""Processes that tests start are killed with their children, and leftover processes are reported."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes import end, is_running, keep, nothing_left_over, started
from tests.system.programs import ingot, run_ingot, start_ingot
from tests.waiting import until


class TestFailed(Exception):
    """An exception that ends a test early."""

    __test__ = False


def pid_in(file: Path) -> int:
    """Wait until a program has written its process ID to a file, and return it."""
    return int(until(lambda: file.exists() and file.read_text(encoding="utf-8").strip()))


def test_a_process_and_its_children_are_killed_when_the_test_fails(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    with suppress(TestFailed), started(["sh", "-c", script]) as process:
        child = pid_in(tmp_path / "pid")
        raise TestFailed
    assert process.returncode == -9
    until(lambda: not is_running(child))


def test_a_forked_command_is_killed_when_the_test_fails(tmp_path: Path) -> None:
    arguments = ("serve", "--data", str(tmp_path), "--port", "0")
    with suppress(TestFailed), ingot(*arguments, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline()
        raise TestFailed
    assert (process.returncode, is_running(process.pid)) == (-9, False)


@pytest.mark.parametrize("arguments", [["--version"], ["serve", "--port", "70000"]])
def test_a_forked_command_behaves_like_the_installed_program(tmp_path: Path, arguments: list[str]) -> None:
    forked, cold = run_ingot(*arguments, cwd=tmp_path), run_ingot(*arguments, cwd=tmp_path, cold=True)
    assert (forked.code, forked.stdout) == (cold.code, cold.stdout)
    assert forked.stderr.replace("python -m ingot", "ingot") == cold.stderr.replace("python -m ingot", "ingot")


def leave_process_running(*command: str) -> None:
    """Run a command that leaves a process running."""
    with nothing_left_over(seconds=0.2):
        subprocess.run(["sh", "-c", " ".join(command)], check=True)


def test_a_leftover_process_is_reported_and_killed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"left running by tests of this module: sleep 601 \(pid \d+\)"):
        leave_process_running("sleep 601 >/dev/null & echo $! >", f"{tmp_path}/pid")
    until(lambda: not is_running(pid_in(tmp_path / "pid")))


def test_a_leftover_process_in_its_own_session_is_reported(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"sleep 602 \(pid"):
        leave_process_running("setsid sleep 602 >/dev/null & echo $! >", f"{tmp_path}/pid")
    until(lambda: not is_running(pid_in(tmp_path / "pid")))


@pytest.mark.parametrize("name", ["postgres", "weed", "multiprocessing.forkserver"])
def test_a_leftover_process_named_like_a_shared_server_is_reported(name: str) -> None:
    with pytest.raises(AssertionError, match=rf"{name} 603 \(pid"):
        leave_process_running(f"bash -c 'exec -a {name} sleep 603' >/dev/null &")


def test_an_allowed_process_and_its_children_are_not_reported() -> None:
    with started(["sh", "-c", "sleep 605 & wait"]) as process:
        keep(process.pid)
        with nothing_left_over(seconds=0.2):
            pass
        with pytest.raises(AssertionError, match="sleep 606"):
            leave_process_running("sleep 606 >/dev/null &")


def test_a_leftover_forked_command_is_reported_with_its_arguments(tmp_path: Path) -> None:
    guard = nothing_left_over(seconds=0.2)
    guard.__enter__()
    process = start_ingot("serve", "--data", str(tmp_path), "--port", "0", stderr=subprocess.DEVNULL)
    with pytest.raises(AssertionError, match=f"ingot serve --data {tmp_path} --port 0"):
        guard.__exit__(None, None, None)
    end(process)
