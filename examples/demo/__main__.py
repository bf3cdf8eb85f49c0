"""`make demo`: starts a server and two workers, converts the samples to Markdown, and keeps the processes running."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console

from examples.demo.processes import DemoFailed, DemoProcesses, clean_environment, read_record, stop_recorded
from examples.demo.tesseract import ensure_tesseract
from ingot import Client
from ingot.jobs.model import JobStatus
from ingot.jobs.worker_model import WorkerStatus
from ingot.kernel.errors import IngotError

SAMPLES: Final = Path(__file__).parents[2] / "samples"
UNREADABLE_SAMPLES: Final = frozenset({"damaged.pdf", "encrypted.pdf"})  # Samples whose jobs must fail.
DATA: Final = Path(".demo")
MARKDOWN: Final = "markdown"
PORT: Final = 8080
WORKERS: Final = 2
POLL_SECONDS: Final = 0.1
START_SECONDS_MAX: Final = 60.0


class Demo:
    """One run of the demo: its processes, its documents and its output."""

    def __init__(self, data: Path, port: int) -> None:
        self.console = DemoConsole(highlight=False, soft_wrap=True)
        self.processes = DemoProcesses(data)
        self._port = port
        self._markdown = data / MARKDOWN

    def run(self) -> int:
        """Start the processes and convert the samples. On a terminal, run until Ctrl-C. Return the exit code."""
        if (notice := ensure_tesseract(self.console.print)) is not None:
            self.console.print(notice)
        self.processes.serve(self._port)
        self.console.print(f"Server started at {self.processes.url}, with its data in {self.processes.data}.")
        if not self.processes.url.endswith(f":{self._port}"):
            self.console.print(f"Another program uses port {self._port}.")
        token = (self.processes.data / "operator.token").read_text(encoding="utf-8").strip()
        with Client(self.processes.url, token=token) as client:
            secret = new_worker_secret(client)
            for number in range(1, WORKERS + 1):
                self._start_worker(number, secret)
            self._wait_for_workers(client)
            self.console.print(f"{WORKERS} workers are online. They convert the PDFs in {SAMPLES.name}/ to Markdown:")
            succeeded = self._convert(client, token)
            link = client.admin.link().url
        self.console.print(f"The server and {WORKERS} workers keep running: {self.processes.url}/docs", end=" ")
        self.console.print(f"(PIDs {', '.join(map(str, self.processes.pids))})")
        self.console.print(f"Sign in as operator (once, within 15 minutes): {link}")
        if self.console.is_terminal:
            self._run_until_interrupted()
        else:
            self.console.print("To stop them, run `make demo-stop`.")
        return 0 if succeeded else 1

    def _start_worker(self, number: int, secret: str) -> None:
        self.processes.start(
            f"worker-{number}", "worker", "--handlers", "pdf", "--drain-seconds", "3", cwd=self.processes.data,
            INGOT_SERVER_URL=self.processes.url, INGOT_WORKER_ID="demo", INGOT_WORKER_SECRET=secret,
        )  # fmt: skip

    def _wait_for_workers(self, client: Client) -> None:
        """Wait until the workers are online. Raises `DemoFailed`."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while sum(worker.status is WorkerStatus.ONLINE for worker in client.workers()) < WORKERS:
            if (name := self.processes.find_ended()) is not None:
                raise DemoFailed(f"the {name} has ended:\n{self.processes.log(name)}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the workers are not online after {START_SECONDS_MAX:g} seconds")
            time.sleep(POLL_SECONDS)

    def _convert(self, client: Client, token: str) -> bool:
        """Convert the samples with `ingot ingest`, as a user would. Return whether each job ended as expected."""
        tag = f"demo-{secrets.token_hex(4)}"
        arguments = ["ingest", SAMPLES.name, "--output", str(self._markdown), "--tag", tag, "--force", "--replace"]
        self.console.print(f"\n  ingot ingest {SAMPLES.name} --output {self._markdown}\n")
        sys.stdout.flush()
        subprocess.run(
            [sys.executable, "-m", "ingot", *arguments],
            cwd=SAMPLES.parent,
            env=clean_environment() | {"INGOT_SERVER_URL": self.processes.url, "INGOT_TOKEN": token},
            check=False,
        )
        actual = {next(iter(job.data.inputs), ""): job.status for job in client.jobs(tag=tag)}
        expected = {
            path.name: JobStatus.DEAD if path.name in UNREADABLE_SAMPLES else JobStatus.SUCCEEDED
            for path in SAMPLES.glob("*.pdf")
        }
        self.console.print(f"\nThe Markdown and the pictures are in {self._markdown}.")
        if actual != expected:
            self.console.print("The result differs from what is expected. Please report this.")
            return False
        unreadable = " and ".join(sorted(UNREADABLE_SAMPLES))
        self.console.print(f"The result is as expected: {unreadable} cannot be converted, to show the errors.")
        return True

    def _run_until_interrupted(self) -> None:
        """Keep the processes running until Ctrl-C, or until one of them ends."""
        with suppress(KeyboardInterrupt):
            self.console.print("Press Ctrl-C to stop them.")
            while (name := self.processes.find_ended()) is None:
                time.sleep(POLL_SECONDS)
            self.console.print(f"The {name} has ended.")
        self.processes.stop()
        self.console.print("Stopped.")


class DemoConsole(Console):
    """A console that raises `BrokenPipeError` when its output is closed, instead of exiting."""

    def on_broken_pipe(self) -> None:
        """See `Console`."""
        raise BrokenPipeError


def new_worker_secret(client: Client) -> str:
    """Create the worker credential, or replace its secret, and return the secret."""
    if any(credential.id == "demo" for credential in client.admin.worker_credentials()):
        return client.admin.regenerate_worker("demo").secret
    return client.admin.create_worker("demo").secret


def run_demo(data: Path, port: int) -> int:
    """Run the demo in a data folder, after stopping an earlier demo there. If it fails, its processes are stopped."""
    data.mkdir(parents=True, exist_ok=True)
    if stopped_pids := stop_recorded(data):
        print(f"Stopped the earlier demo (PIDs {', '.join(map(str, stopped_pids))}).")
    demo = Demo(data, port)
    try:
        return demo.run()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        demo.processes.stop()
        raise


def stop_demo(data: Path) -> int:
    """Stop the processes that a demo left running."""
    record = read_record(data)
    stopped_pids = stop_recorded(data)
    if record is None or not stopped_pids:
        print("No demo is running.")
    else:
        print(f"Stopped the demo at {record.url} (PIDs {', '.join(map(str, stopped_pids))}).")
    return 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="demo", description="Run a server and two workers, and convert the samples.")
    parser.add_argument("--stop", action="store_true", help="stop the processes that an earlier demo left running")
    parser.add_argument("--port", type=int, default=PORT, help="the first port to try (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=DATA, help="the data folder (default: %(default)s)")
    options = parser.parse_args()
    if not 1 <= options.port <= 65_535:
        parser.error(f"--port must be between 1 and 65535, got {options.port}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Shells without job control disable it.
    try:
        data = options.data.absolute()
        return stop_demo(data) if options.stop else run_demo(data, options.port)
    except DemoFailed as error:
        print(f"demo: {error}", file=sys.stderr)
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # The output was closed, as by `| head`. Exit silently.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        print(f"demo: cannot use {error.filename or 'the folder'}: {error.strerror}", file=sys.stderr)
    except IngotError as error:
        print(f"demo: {error.detail.rstrip('.')}. {error.hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1


def exit_on_signal(number: int, _: FrameType | None) -> None:
    """Exit as after Ctrl-C, with the exit code of the signal."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
