"""`make demo`: starts a server and two workers, gives them work and trouble, and leaves them running."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.processes import DemoFailed, Processes, read_record, stop_recorded
from examples.demo.scenes import Play, finished
from ingot import Client
from ingot.jobs.model import JobStatus
from ingot.kernel.errors import IngotError

HANDLERS: Final = Path(__file__).parents[1]
DATA: Final = Path(".demo")
PORT: Final = 8080
JOBS: Final = 300
JOBS_MAX: Final = 10_000  # More are not counted exactly under a tag.
WORKERS: Final = 2
LEASE_SECONDS: Final = "3"  # A worker that was killed is missed that soon.
LOOK_SECONDS: Final = 0.1
LINE_SECONDS: Final = 1.0
PLAY_SECONDS_MAX: Final = 120.0
SHOWN: Final = [status for status in JobStatus if status is not JobStatus.BLOCKED]


class Demo:
    """The processes, the jobs, and what is to be seen of them."""

    def __init__(self, data: Path, port: int, jobs: int) -> None:
        self.console = DemoConsole(highlight=False, soft_wrap=True)
        self.processes = Processes(data)
        self._port = port
        self._jobs = jobs
        self._workers = 0
        self._secret = ""

    def run(self) -> int:
        """Begin, play, tell; on a terminal stay until Ctrl-C. 0 when the figures are what they should be."""
        self.processes.serve(self._port, INGOT_LEASE_SECONDS=LEASE_SECONDS)
        self.console.print(f"A server is at {self.processes.url}, its data in {self.processes.data}.")
        if not self.processes.url.endswith(f":{self._port}"):
            self.console.print(f"The port {self._port} is taken by another program.")
        with Client(self.processes.url, token=self._token()) as client:
            self._secret = credential(client)
            for _ in range(WORKERS):
                self._start_worker()
            play = Play(client, self._jobs)
            self.console.print(f"{WORKERS} workers are started; they are asked for {play.jobs} jobs of 5 types.")
            self._play(play)
            right = self._tell(play)
            link = client.admin.link().url
        self.console.print(f"The server and {WORKERS} workers run on: {self.processes.url}/docs", end=" ")
        self.console.print(f"(pid {', '.join(map(str, self.processes.pids))})")
        self.console.print(f"Sign in as operator, once, within 15 minutes: {link}")
        if self.console.is_terminal:
            self._stay()
        else:
            self.console.print("`make demo-stop` ends them.")
        return 0 if right else 1

    def _token(self) -> str:
        return (self.processes.data / "operator.token").read_text(encoding="utf-8").strip()

    def _start_worker(self) -> None:
        self._workers += 1
        self.processes.start(
            f"worker-{self._workers}", "worker", "--app", "press:worker", "--drain-seconds", "3", cwd=HANDLERS,
            INGOT_SERVER_URL=self.processes.url, INGOT_WORKER_ID="press", INGOT_WORKER_SECRET=self._secret,
        )  # fmt: skip

    def _play(self, play: Play) -> None:
        """Watch the work; meanwhile cancel some of it, and kill a worker."""
        play.ask()
        began = shown = time.monotonic()
        canceled = killed = False
        with View(self.console, play.jobs) as view:
            while finished(counts := play.counts()) < play.jobs:
                if not canceled and (canceled := play.cancel()):
                    view.say("A job that would never end is canceled.")
                if not killed and (pid := play.victim()) in self.processes.pids:
                    killed = True
                    self.processes.kill(pid)
                    self._start_worker()
                    view.say(f"A worker is killed (KILL to {pid}); another is started. What it held comes back.")
                if (name := self.processes.ended()) is not None:
                    raise DemoFailed(f"the {name} has ended:\n{self.processes.log(name)}")
                if time.monotonic() - began > PLAY_SECONDS_MAX:
                    raise DemoFailed(f"{finished(counts)} of {play.jobs} jobs in {PLAY_SECONDS_MAX:g} seconds")
                shown = view.show(counts, shown)
                time.sleep(LOOK_SECONDS)
            view.show(counts, 0.0)

    def _tell(self, play: Play) -> bool:
        """What was asked for, and what became of it; whether that is the same."""
        self.console.print(drawn(play.counts()))
        figures = play.figures()
        for figure in figures:
            self.console.print(f"{figure.found:6d} {figure.what}", end="")
            self.console.print("" if figure.right else f": there should be {figure.asked}")
        right = all(figure.right for figure in figures)
        self.console.print("The figures are right." if right else "The figures are wrong: please report this.")
        return right

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


class View:
    """The live view on a terminal; a line a second anywhere else."""

    def __init__(self, console: Console, jobs: int) -> None:
        self._console = console
        self._bar = Progress(TextColumn("finished"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("finished", total=jobs)
        self._live = Live(console=console, refresh_per_second=10, transient=True) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, sentence: str) -> None:
        """Something happens."""
        self._console.print(sentence)

    def show(self, counts: dict[str, Counter[JobStatus]], shown: float) -> float:
        """How it stands. `shown` is when that was last told; answers when it is."""
        now = time.monotonic()
        if self._live is not None:
            self._bar.update(self._task, completed=finished(counts))
            self._live.update(Group(self._bar, drawn(counts)))
        elif now - shown < LINE_SECONDS:
            return shown
        else:
            total = sum(counts.values(), Counter())
            self._console.print(", ".join(f"{total[status]} {status}" for status in SHOWN if total[status]))
        return now


def drawn(counts: dict[str, Counter[JobStatus]]) -> Table:
    """Where the jobs of each type stand, as a table."""
    table = Table("type")
    for status in SHOWN:
        table.add_column(status, justify="right")
    for type, count in counts.items():
        table.add_row(type, *(str(count[status]) for status in SHOWN))
    total = sum(counts.values(), Counter())
    table.add_section()
    table.add_row("all", *(str(total[status]) for status in SHOWN))
    return table


def credential(client: Client) -> str:
    """The secret of the workers, a new one each time."""
    if any(one.id == "press" for one in client.admin.worker_credentials()):
        return client.admin.regenerate_worker("press").secret
    return client.admin.create_worker("press").secret


def play_in(data: Path, port: int, jobs: int) -> int:
    """Run the demo in a data folder, in place of the one that runs there. What it started ends with it if it fails."""
    data.mkdir(parents=True, exist_ok=True)
    if ended := stop_recorded(data):
        print(f"The demo that ran before is ended (pid {', '.join(map(str, ended))}).")
    demo = Demo(data, port, jobs)
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
    parser = argparse.ArgumentParser(prog="demo", description="Run a server, two workers, and a few hundred jobs.")
    parser.add_argument("--stop", action="store_true", help="end what an earlier demo left running")
    parser.add_argument("--jobs", type=int, default=JOBS, help="about how many jobs (default: %(default)s)")
    parser.add_argument("--port", type=int, default=PORT, help="the first port to try (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=DATA, help="the data folder (default: %(default)s)")
    options = parser.parse_args()
    if not 1 <= options.jobs <= JOBS_MAX:
        parser.error(f"--jobs goes from 1 to {JOBS_MAX:,}")
    if not 1 <= options.port <= 65_535:
        parser.error("--port goes from 1 to 65535")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell without job control has it ignored.
    try:
        data = options.data.absolute()
        return stop_in(data) if options.stop else play_in(data, options.port, options.jobs)
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
