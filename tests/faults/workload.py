"""Work on a store, of every kind and by many tasks at once."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

from ingot.engines.sqlite import SQLiteStore
from ingot.jobs import Claim, Failed, OnDead, Outcome, Release, Snooze
from ingot.kernel.clock import MICROS, Clock
from tests.faults.history import Recorder
from tests.faults.recorded_calls import DEFINITIONS, Held, RecordedJobs, done, held_by

STEERED = ("plain", "flaky")
WAITING_MAX = 150
PAUSE_SECONDS = 0.006
DELAY_SECONDS_MAX = 0.4
SNOOZE_MICROS_MAX = 200_000


class Workload:
    """Tasks that use every verb of the jobs room on one store, at random."""

    waits_for_others: ClassVar = True

    def __init__(
        self,
        store: SQLiteStore,
        clock: Clock,
        recorder: Recorder,
        *,
        lease_seconds: float,
        seed: int,
        held: list[Held] | None = None,
    ) -> None:
        self._recorded = RecordedJobs(store, recorder, lease_seconds=lease_seconds)
        self._clock = clock
        self._random = random.Random(seed)
        self._known: deque[tuple[str, str]] = deque(maxlen=400)
        self._held: deque[Held] = deque(held or (), maxlen=200)
        self._waiting = 0
        self._stopping = False

    async def prepare(self) -> None:
        """Make what is missing to begin."""
        await self._recorded.prepare()

    async def run(self, seconds: float) -> None:
        """Work for some time."""
        turns = [
            *[self._ask] * 3,
            *[self._work] * 4,
            self._work_in_line,
            self._swallow_poison,
            self._come_back_late,
            *[self._steer] * 2,
        ]
        async with asyncio.TaskGroup() as group:
            for turn in turns:
                group.create_task(self._again(turn))
            await asyncio.sleep(seconds)
            self._stopping = True

    async def drain(self, seconds: float) -> bool:
        """Finish all work, poison too, as workers that never fail would; whether it ended within the time."""
        async with asyncio.TaskGroup() as group:
            for turn in (*[self._finish] * 4, self._swallow_poison):
                group.create_task(self._again(turn))
            try:
                async with asyncio.timeout(seconds):
                    await self._until_empty()
            except TimeoutError:
                return False
            finally:
                self._stopping = True
        return True

    async def _until_empty(self) -> None:
        while not all([await self._is_empty(tenant) for tenant in self._recorded.tenants]):
            await self._pause()

    async def _is_empty(self, tenant: str) -> bool:
        counts = (await self._recorded.jobs.summary(tenant)).counts
        return not any(counts[status] for status in counts if status in ("blocked", "queued", "running"))

    async def _again(self, turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self._stopping:
            await turn()
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0, 2 * PAUSE_SECONDS))

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    # -- turns ----------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        if self._waiting > WAITING_MAX:
            self._waiting -= 1
            return
        wishes = [self._wish() for _ in range(self._random.choice((1, 1, 1, 1, 2, 5, 12)))]
        enqueued = await self._recorded.enqueue(*wishes, alone=len(wishes) == 1 and self._chance(0.5))
        self._waiting += len(enqueued)
        self._known.extend((each.job.tenant, each.job.id) for each in enqueued if each.job.type in STEERED)

    def _wish(self) -> dict[str, Any]:
        kind = self._random.random()
        type = self._random.choices(list(DEFINITIONS), weights=(60, 20, 15, 5))[0]
        wish: dict[str, Any] = {
            "tenant": self._random.choice(self._recorded.tenants),
            "type": type,
            "priority": self._random.choice((None, None, None, 1, 3, 5)),
            "delay": self._random.uniform(0, DELAY_SECONDS_MAX) if self._chance(0.3) else None,
            "tags": ("a", "b") if self._chance(0.1) else (),
        }
        if type in STEERED and kind < 0.2:
            key = f"key-{self._random.randrange(300)}"
            return wish | {"idempotency_key": key, "payload": {"key": key, "version": int(self._chance(0.15))}}
        if type in STEERED and kind < 0.3:
            return wish | {"dedupe_key": f"dedupe-{self._random.randrange(60)}"}
        if type in STEERED and kind < 0.45 and self.waits_for_others:
            return wish | self._wait_for_some(wish["tenant"])
        return wish

    def _wait_for_some(self, tenant: str) -> dict[str, Any]:
        """One or more of the latest jobs of the same tenant, whatever has become of them."""
        own = [job_id for owner, job_id in self._known if owner == tenant][-30:]
        parents = self._random.sample(own, min(len(own), self._random.choice((1, 1, 2, 4))))
        return {"after": parents, "on_dead": self._random.choice(list(OnDead))} if parents else {}

    async def _claim(self, *types: str, limit: int, tenant: str | None = None, wait: float = 0) -> list[Claim]:
        claims = await self._recorded.claim(*types, limit=limit, tenant=tenant, wait=wait)
        self._waiting -= len(claims)
        return claims

    async def _work(self) -> None:
        types = self._random.choice((["plain"], ["flaky"], ["plain", "flaky"]))
        tenant = self._random.choice((None, None, *self._recorded.tenants))
        wait = 0.02 if self._chance(0.2) else 0.0
        claims = await self._claim(*types, limit=self._random.choice((1, 1, 3, 8)), tenant=tenant, wait=wait)
        attempts = [held_by(claim) for claim in claims]
        if attempts and self._chance(0.2):
            if self._held and self._chance(0.5):
                attempts.insert(self._random.randrange(len(attempts) + 1), self._random.choice(self._held))
            await self._recorded.settle_many(attempts, self._outcome)
            return
        for held in attempts:
            await self._work_on(held)

    async def _work_on(self, held: Held) -> None:
        self._held.append(held)
        if self._chance(0.1):
            return  # The worker went silent.
        for _ in range(self._random.choice((0, 0, 0, 1, 2))):
            await self._recorded.beat(held)
        said = await self._recorded.settle(held, self._outcome)
        if self._chance(0.15):
            await self._recorded.settle(held, lambda number: said)
        if self._chance(0.1):
            await self._recorded.settle(held, self._outcome)

    async def _work_in_line(self) -> None:
        for claim in await self._claim("line", limit=self._random.choice((1, 2, 5)), wait=0.02):
            await self._recorded.settle(held_by(claim), done)

    async def _swallow_poison(self) -> None:
        await self._claim("poison", limit=2, wait=0.05)

    async def _finish(self) -> None:
        for claim in await self._claim("plain", "flaky", "line", limit=20, wait=0.3):
            await self._recorded.settle(held_by(claim), done)

    async def _come_back_late(self) -> None:
        """Speak for an attempt of long ago, or of nobody."""
        if not self._held:
            return
        known = self._random.choice(self._held)
        held = Held(known.job_id, known.fence + self._random.choice((0, 0, 0, 0, -1, 1, 2**32)))
        if self._chance(0.4):
            await self._recorded.beat(held)
        else:
            await self._recorded.settle(held, self._outcome)

    def _outcome(self, number: str) -> Outcome:
        match self._random.choices(("done", "failed", "fatal", "snooze", "release"), weights=(55, 20, 5, 10, 10))[0]:
            case "done":
                return done(number)
            case "failed":
                return Failed(error=f"by {number}", exit_code=self._random.choice((None, 1)))
            case "fatal":
                return Failed(error=f"by {number}", retry=False)
            case "snooze":
                return Snooze(delay=self._random.randrange(1, SNOOZE_MICROS_MAX))
            case _:
                return Release()

    async def _steer(self) -> None:
        if not self._known:
            return
        tenant, job_id = self._random.choice(self._known)
        run_at = self._clock.micros() + self._random.randrange(round(DELAY_SECONDS_MAX * MICROS))
        match self._random.choices(("cancel", "retry", "change"), weights=(25, 45, 30))[0]:
            case "cancel":
                await self._recorded.cancel(tenant, job_id)
            case "retry":
                when = run_at if self._chance(0.5) else None
                await self._recorded.retry(tenant, job_id, reset=self._chance(0.3), run_at=when)
            case _:
                priority = self._random.choice((None, 1, 4))
                await self._recorded.change(tenant, job_id, priority=priority, run_at=run_at)
