"""Repeated kills of a server with blobs and of its clients' requests, with checks after each kill."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx

from ingot.identity.credential_secrets import new_token
from ingot.kernel.ids import new_id
from tests.faults.blob_clients import Client, KilledServer
from tests.faults.blob_environment import BlobEnvironment
from tests.faults.blob_rules import check_blobs, check_emptied
from tests.faults.blob_server_process import GRACE_SECONDS, BlobPlan, serve
from tests.faults.forkserver import FORKSERVER
from tests.faults.invariants import Broken
from tests.processes import end
from tests.system.programs import start_ingot

CLIENTS = 4
START_SECONDS_MAX = 90.0
WORK_SECONDS_MAX = 0.5
POINT_SECONDS_MAX = 90.0
EMPTY_SECONDS_MAX = 90.0


class ServeCommand:
    """`ingot serve`."""

    def __init__(self, data: Path, address: Path, token: str) -> None:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("INGOT")}
        environment = {**inherited, "INGOT_OPERATOR_TOKEN": token, "INGOT_COLLECT_SECONDS": "1"}
        arguments = ("serve", "--data", str(data), "--port", "0")
        self._process = start_ingot(*arguments, env=environment, stderr=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"http://[^\s\"]+", line):
                address.write_text(found[0], encoding="utf-8")
                break

    @property
    def exitcode(self) -> int | None:
        """The exit code, or `None` while it runs."""
        return self._process.poll()

    def join(self, timeout: float) -> None:
        """Wait until it ends."""
        self._process.communicate(timeout=timeout)
        end(self._process)


class BlobKillRun:
    """A store of blobs, and servers that use it one after the other. `where` names engine and store: `sqlite-local`.

    A `real` server is the command `ingot serve`, which cannot be killed at a named point.
    """

    def __init__(self, folder: Path, seed: int, *, where: str = "sqlite-local", real: bool = False) -> None:
        self._real = real
        self.folder = folder
        self.seed = seed
        self.kills = 0
        self._random = random.Random(seed)
        self._output = folder / "output.txt"
        self._address = folder / "address"
        self._token = new_token(new_id())
        self._bytes_by_digest: dict[str, bytes] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._environment = BlobEnvironment(folder, *where.split("-"))
        self._clients = [
            Client(number, self._random.randrange(2**32), self._bytes_by_digest) for number in range(CLIENTS)
        ]

    @property
    def acked(self) -> int:
        """The number of acknowledged calls."""
        return sum(client.acked for client in self._clients)

    @property
    def unknown_objects(self) -> int:
        """The number of objects that no row refers to."""
        return self._environment.unknown_objects

    def close(self) -> None:
        """Remove the database, and leave the folder."""
        self._environment.close()

    def kill_at_random(self) -> None:
        """Let clients work, and kill the server at a random moment, sometimes before it accepts requests."""
        process = self.start()
        if self._random.random() < 0.1:
            time.sleep(self._random.uniform(0.0, 0.2))
            self._kill(process)
        else:
            asyncio.run(self._work(process, self._random.uniform(0.0, WORK_SECONDS_MAX)))
        self._check_exit(process)

    def kill_at(self, point: str, countdown: int) -> None:
        """Let clients work until the server kills itself at a named point. Raises `Broken` if it never does."""
        process = self.start(point, countdown)
        asyncio.run(self._work(process, None))
        try:
            self._check_exit(process)
        except Broken as error:
            error.add_note(f"the point {point!r} was not reached {countdown} times")
            raise

    def collect_all(self) -> None:
        """Run a server without clients until the collector has finished, and check that nothing is left."""
        process = self.start()
        try:
            asyncio.run(self._wait_for_collector(process))
        finally:
            self._kill(process)
        self._check_exit(process)
        self._run_check(check_emptied)

    def check(self) -> None:
        """Check all rows and all objects. Raises `Broken`."""
        self._run_check(check_blobs)

    def _run_check(self, check: Callable[[BlobEnvironment], None]) -> None:
        try:
            check(self._environment)
        except Broken as error:
            raise self._broken(str(error)) from None

    # -- servers --------------------------------------------------------------------------------------------

    def start(self, point: str | None = None, countdown: int = 1) -> BaseProcess | ServeCommand:
        """Start a server."""
        self._address.unlink(missing_ok=True)
        if self._real:
            return ServeCommand(self._environment.settings.data, self._address, self._token)
        plan = BlobPlan(
            settings=self._environment.settings,
            output=self._output,
            address=self._address,
            token=self._token,
            point=point,
            countdown=countdown,
        )
        process = FORKSERVER.Process(target=serve, args=(plan,), daemon=True)
        process.start()
        return process

    async def _work(self, process: BaseProcess | ServeCommand, seconds: float | None) -> None:
        async with await self._connect(process) as http:
            server = KilledServer(self._address.read_text(encoding="utf-8") if self._address.exists() else "", http)
            client_tasks = [asyncio.create_task(client.work(server)) for client in self._clients]
            try:
                timeout = POINT_SECONDS_MAX if seconds is None else seconds
                done, _ = await asyncio.wait(client_tasks, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
            except Broken as error:
                raise self._broken(str(error)) from None
            finally:
                self._kill(process)
                server.is_dead = True
                ends = await asyncio.gather(*client_tasks, return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise self._broken(str(end)) from end

    async def _connect(self, process: BaseProcess | ServeCommand) -> httpx.AsyncClient:
        """Wait until the server accepts requests or has ended, and return a client."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._address.exists() and process.exitcode is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return httpx.AsyncClient(headers={"authorization": f"Bearer {self._token}"}, trust_env=False, verify=False)

    async def _wait_for_collector(self, process: BaseProcess | ServeCommand) -> None:
        async with await self._connect(process) as http:
            url = f"{self._address.read_text(encoding='utf-8')}/api/v1/blobs/collect"
            deadline = time.monotonic() + EMPTY_SECONDS_MAX
            idle = 0
            while idle < 2 and time.monotonic() < deadline:
                await asyncio.sleep(1.5 * GRACE_SECONDS)
                done = (await http.post(url, json={"dry_run": False}, timeout=20)).json()
                idle = idle + 1 if not (done["blobs"] or done["objects"] or done["uploads"]) else 0

    def _kill(self, process: BaseProcess | ServeCommand) -> None:
        if process.exitcode is None and process.pid is not None:
            with suppress(ProcessLookupError):  # It has just ended.
                os.kill(process.pid, signal.SIGKILL)

    def _check_exit(self, process: BaseProcess | ServeCommand) -> None:
        process.join(START_SECONDS_MAX)
        lines = self._output.read_text(errors="replace").splitlines() if self._output.exists() else []
        output = "\n".join(line for line in lines if "abandoned_uploads_ended" not in line)[-4000:]
        if process.exitcode != -signal.SIGKILL or output:
            raise self._broken(f"the process ended with {process.exitcode} and printed: {output or 'nothing'}")
        self.kills += 1

    def _broken(self, text: str) -> Broken:
        return Broken(f"{text}\nseed {self.seed}, kill {self.kills}; the folder is kept in {self.folder}")
