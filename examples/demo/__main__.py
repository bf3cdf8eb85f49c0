"""`make demo`: starts a server and two workers, has them make Markdown of the samples, and leaves them running."""

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
from examples.demo.tesseract import get_reader
from ingot import Client
from ingot.jobs.model import JobStatus
from ingot.jobs.worker_model import WorkerStatus
from ingot.kernel.errors import IngotError

SAMPLES: Final = Path(__file__).parents[2] / "samples"
REFUSED: Final = frozenset({"damaged.pdf", "encrypted.pdf"})  # Samples of which nothing can be made, and that says so.
DATA: Final = Path(".demo")
MARKDOWN: Final = "markdown"
PORT: Final = 8080
WORKERS: Final = 2
LOOK_SECONDS: Final = 0.1
START_SECONDS_MAX: Final = 60.0


class Demo:
    """The processes, the documents, and what is to be seen of them."""

    def __init__(self, data: Path, port: int) -> None:
        self.console = DemoConsole(highlight=False, soft_wrap=True)
        self.processes = DemoProcesses(data)
        self._port = port
        self._markdown = data / MARKDOWN

    def run(self) -> int:
        """Begin, convert, tell; on a terminal stay until Ctrl-C. 0 when all came out as it should."""
        if (missing := get_reader(self.console.print)) is not None:
            self.console.print(missing)
        self.processes.serve(self._port)
        self.console.print(f"A server is at {self.processes.url}, its data in {self.processes.data}.")
        if not self.processes.url.endswith(f":{self._port}"):
            self.console.print(f"The port {self._port} is taken by another program.")
        token = (self.processes.data / "operator.token").read_text(encoding="utf-8").strip()
        with Client(self.processes.url, token=token) as client:
            secret = credential(client)
            for number in range(1, WORKERS + 1):
                self._start_worker(number, secret)
            self._await_workers(client)
            self.console.print(f"{WORKERS} workers are there. They make Markdown of the PDFs in {SAMPLES.name}/:")
            right = self._convert(client, token)
            link = client.admin.link().url
        self.console.print(f"The server and {WORKERS} workers run on: {self.processes.url}/docs", end=" ")
        self.console.print(f"(pid {', '.join(map(str, self.processes.pids))})")
        self.console.print(f"Sign in as operator, once, within 15 minutes: {link}")
        if self.console.is_terminal:
            self._stay()
        else:
            self.console.print("`make demo-stop` ends them.")
        return 0 if right else 1

    def _start_worker(self, number: int, secret: str) -> None:
        self.processes.start(
            f"worker-{number}", "worker", "--handlers", "pdf", "--drain-seconds", "3", cwd=self.processes.data,
            INGOT_SERVER_URL=self.processes.url, INGOT_WORKER_ID="demo", INGOT_WORKER_SECRET=secret,
        )  # fmt: skip

    def _await_workers(self, client: Client) -> None:
        """Until they are online. Raises `DemoFailed`."""
        until = time.monotonic() + START_SECONDS_MAX
        while sum(worker.status is WorkerStatus.ONLINE for worker in client.workers()) < WORKERS:
            if (name := self.processes.ended()) is not None:
                raise DemoFailed(f"the {name} has ended:\n{self.processes.log(name)}")
            if time.monotonic() > until:
                raise DemoFailed(f"the workers are not online after {START_SECONDS_MAX:g} seconds")
            time.sleep(LOOK_SECONDS)

    def _convert(self, client: Client, token: str) -> bool:
        """Send the samples through by the command that anybody would type; whether that went right."""
        tag = f"demo-{secrets.token_hex(4)}"
        words = ["ingest", SAMPLES.name, "--output", str(self._markdown), "--tag", tag, "--force", "--replace"]
        self.console.print(f"\n  ingot ingest {SAMPLES.name} --output {self._markdown}\n")
        sys.stdout.flush()
        subprocess.run(
            [sys.executable, "-m", "ingot", *words],
            cwd=SAMPLES.parent,
            env=clean_environment() | {"INGOT_SERVER_URL": self.processes.url, "INGOT_TOKEN": token},
            check=False,
        )
        found = {next(iter(job.data.inputs), ""): job.status for job in client.jobs(tag=tag)}
        wanted = {
            path.name: JobStatus.DEAD if path.name in REFUSED else JobStatus.SUCCEEDED for path in SAMPLES.glob("*.pdf")
        }
        self.console.print(f"\nThe Markdown and the pictures are in {self._markdown}.")
        if found != wanted:
            self.console.print("Something went wrong: please report this.")
            return False
        self.console.print(f"All is as it should be: {' and '.join(sorted(REFUSED))} are there to be refused.")
        return True

    def _stay(self) -> None:
        """Until Ctrl-C, or until somebody ends what was started."""
        with suppress(KeyboardInterrupt):
            self.console.print("Ctrl-C ends them.")
            while (name := self.processes.ended()) is None:
                time.sleep(LOOK_SECONDS)
            self.console.print(f"The {name} has ended.")
        self.processes.stop()
        self.console.print("All is ended.")


class DemoConsole(Console):
    """A console that tells its caller when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """See `Console`."""
        raise BrokenPipeError


def credential(client: Client) -> str:
    """The secret of the workers, a new one each time."""
    if any(one.id == "demo" for one in client.admin.worker_credentials()):
        return client.admin.regenerate_worker("demo").secret
    return client.admin.create_worker("demo").secret


def play_in(data: Path, port: int) -> int:
    """Run the demo in a data folder, in place of the one that runs there. What it started ends with it if it fails."""
    data.mkdir(parents=True, exist_ok=True)
    if ended := stop_recorded(data):
        print(f"The demo that ran before is ended (pid {', '.join(map(str, ended))}).")
    demo = Demo(data, port)
    try:
        return demo.run()
    except BaseException:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        demo.processes.stop()
        raise


def stop_in(data: Path) -> int:
    """End what a demo left running."""
    was = read_record(data)
    ended = stop_recorded(data)
    if was is None or not ended:
        print("No demo runs.")
    else:
        print(f"The demo at {was.url} is ended (pid {', '.join(map(str, ended))}).")
    return 0


def main() -> int:
    """Read the options and do it."""
    parser = argparse.ArgumentParser(prog="demo", description="Run a server and two workers, and convert the samples.")
    parser.add_argument("--stop", action="store_true", help="end what an earlier demo left running")
    parser.add_argument("--port", type=int, default=PORT, help="the first port to try (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=DATA, help="the data folder (default: %(default)s)")
    options = parser.parse_args()
    if not 1 <= options.port <= 65_535:
        parser.error("--port goes from 1 to 65535")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell without job control has it ignored.
    try:
        data = options.data.absolute()
        return stop_in(data) if options.stop else play_in(data, options.port)
    except DemoFailed as error:
        print(f"demo: {error}", file=sys.stderr)
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # Nobody reads any more, as after `| head`: quiet, at the flush too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + signal.SIGPIPE
        print(f"demo: cannot use {error.filename or 'the folder'}: {error.strerror}", file=sys.stderr)
    except IngotError as error:
        print(f"demo: {error.detail.rstrip('.')}. {error.hint}", file=sys.stderr)
    except KeyboardInterrupt:
        print("Stopped; all is ended.", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1


def leave(number: int, _: FrameType | None) -> None:
    """End as after Ctrl-C, with the signal's own code."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
