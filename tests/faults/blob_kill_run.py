"""A server with blobs that is killed again and again, its clients, and the checks after each end of it."""

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
from tests.faults.blob_clients import Client, Server
from tests.faults.blob_environment import Premises
from tests.faults.blob_rules import check_blobs, check_emptied
from tests.faults.blob_server_process import GRACE_SECONDS, BlobPlan, serve
from tests.faults.forkserver import PROCESSES
from tests.faults.invariants import Broken
from tests.processes import end
from tests.system.programs import start_ingot

CLIENTS = 4
START_SECONDS_MAX = 90.0
WORK_SECONDS_MAX = 0.5
POINT_SECONDS_MAX = 90.0
EMPTY_SECONDS_MAX = 90.0


class RealServer:
    """`ingot serve`."""

    def __init__(self, data: Path, address: Path, token: str) -> None:
        known = {name: text for name, text in os.environ.items() if not name.startswith("INGOT")}
        given = {**known, "INGOT_OPERATOR_TOKEN": token, "INGOT_COLLECT_SECONDS": "1"}
        words = ("serve", "--data", str(data), "--port", "0")
        self._process = start_ingot(*words, env=given, stderr=subprocess.PIPE)
        self.pid = self._process.pid
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"http://[^\s\"]+", line):
                address.write_text(found[0], encoding="utf-8")
                break

    @property
    def exitcode(self) -> int | None:
        """How it ended, if it has."""
        return self._process.poll()

    def join(self, timeout: float) -> None:
        """Wait for its end."""
        self._process.communicate(timeout=timeout)
        end(self._process)


class BlobLife:
    """One place for blobs, from its first server on: an engine and a store, as in `sqlite-local`.

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
        self._known: dict[str, bytes] = {}
        folder.mkdir(parents=True, exist_ok=True)
        self._premises = Premises(folder, *where.split("-"))
        self._clients = [Client(number, self._random.randrange(2**32), self._known) for number in range(CLIENTS)]

    @property
    def acked(self) -> int:
        """How many calls were answered."""
        return sum(client.acked for client in self._clients)

    @property
    def strangers(self) -> int:
        """How many objects no row has known."""
        return self._premises.strangers

    def close(self) -> None:
        """Let everything go but the folder."""
        self._premises.close()

    def kill_at_random(self) -> None:
        """Let clients work, and kill the server at some moment, now and then before it serves."""
        process = self.start()
        if self._random.random() < 0.1:
            time.sleep(self._random.uniform(0.0, 0.2))
            self._kill(process)
        else:
            asyncio.run(self._work(process, self._random.uniform(0.0, WORK_SECONDS_MAX)))
        self._ended(process)

    def kill_at(self, point: str, countdown: int) -> None:
        """Let clients work until the server dies at a named point; it is an error when it never gets there."""
        process = self.start(point, countdown)
        asyncio.run(self._work(process, None))
        try:
            self._ended(process)
        except Broken as error:
            error.add_note(f"the point {point!r} was not reached {countdown} times")
            raise

    def rest(self) -> None:
        """Let a server run without clients until the collector has nothing more to do."""
        process = self.start()
        try:
            asyncio.run(self._wait_for_the_collector(process))
        finally:
            self._kill(process)
        self._ended(process)
        self._checked(check_emptied)

    def check(self) -> None:
        """Look at all rows and all objects."""
        self._checked(check_blobs)

    def _checked(self, check: Callable[[Premises], None]) -> None:
        try:
            check(self._premises)
        except Broken as error:
            raise self._broken(str(error)) from None

    # -- servers --------------------------------------------------------------------------------------------

    def start(self, point: str | None = None, countdown: int = 1) -> BaseProcess | RealServer:
        """Start a server."""
        self._address.unlink(missing_ok=True)
        if self._real:
            return RealServer(self._premises.settings.data, self._address, self._token)
        plan = BlobPlan(
            settings=self._premises.settings,
            output=self._output,
            address=self._address,
            token=self._token,
            point=point,
            countdown=countdown,
        )
        process = PROCESSES.Process(target=serve, args=(plan,), daemon=True)
        process.start()
        return process

    async def _work(self, process: BaseProcess | RealServer, seconds: float | None) -> None:
        async with await self._reach(process) as http:
            server = Server(self._address.read_text(encoding="utf-8") if self._address.exists() else "", http)
            working = [asyncio.create_task(client.work(server)) for client in self._clients]
            try:
                most = POINT_SECONDS_MAX if seconds is None else seconds
                done, _ = await asyncio.wait(working, timeout=most, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
            except Broken as error:
                raise self._broken(str(error)) from None
            finally:
                self._kill(process)
                server.dead = True
                ends = await asyncio.gather(*working, return_exceptions=True)
            for end in ends:
                if end is not None:
                    raise self._broken(str(end)) from end

    async def _reach(self, process: BaseProcess | RealServer) -> httpx.AsyncClient:
        """Wait until it serves, or is dead."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._address.exists() and process.exitcode is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return httpx.AsyncClient(headers={"authorization": f"Bearer {self._token}"}, trust_env=False, verify=False)

    async def _wait_for_the_collector(self, process: BaseProcess | RealServer) -> None:
        async with await self._reach(process) as http:
            url = f"{self._address.read_text(encoding='utf-8')}/api/v1/blobs/collect"
            deadline = time.monotonic() + EMPTY_SECONDS_MAX
            idle = 0
            while idle < 2 and time.monotonic() < deadline:
                await asyncio.sleep(1.5 * GRACE_SECONDS)
                done = (await http.post(url, json={"dry_run": False}, timeout=20)).json()
                idle = idle + 1 if not (done["blobs"] or done["objects"] or done["uploads"]) else 0

    def _kill(self, process: BaseProcess | RealServer) -> None:
        if process.exitcode is None and process.pid is not None:
            with suppress(ProcessLookupError):  # It was faster.
                os.kill(process.pid, signal.SIGKILL)

    def _ended(self, process: BaseProcess | RealServer) -> None:
        process.join(START_SECONDS_MAX)
        said = self._output.read_text(errors="replace")[-4000:] if self._output.exists() else ""
        if process.exitcode != -signal.SIGKILL or said:
            raise self._broken(f"the process ended with {process.exitcode} and said: {said or 'nothing'}")
        self.kills += 1

    def _broken(self, text: str) -> Broken:
        return Broken(f"{text}\nseed {self.seed}, kill {self.kills}; the folder is kept in {self.folder}")
