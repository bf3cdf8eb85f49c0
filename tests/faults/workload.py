"""Random operations on a store by many tasks at once."""

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
from tests.faults.recorded_calls import DEFINITIONS, HeldAttempt, RecordedJobs, attempt_of, done

CHANGED_TYPES = ("plain", "flaky")
QUEUED_MAX = 150
PAUSE_SECONDS = 0.006
DELAY_SECONDS_MAX = 0.4
SNOOZE_MICROS_MAX = 200_000


class Workload:
    """Tasks that use every operation of the jobs room on one store, at random."""

    uses_dependencies: ClassVar = True

    def __init__(
        self,
        store: SQLiteStore,
        clock: Clock,
        recorder: Recorder,
        *,
        lease_seconds: float,
        seed: int,
        attempts: list[HeldAttempt] | None = None,
    ) -> None:
        self._recorded = RecordedJobs(store, recorder, lease_seconds=lease_seconds)
        self._clock = clock
        self._random = random.Random(seed)
        self._recent_jobs: deque[tuple[str, str]] = deque(maxlen=400)
        self._attempts: deque[HeldAttempt] = deque(attempts or (), maxlen=200)
        self._queued = 0
        self._stopping = False

    async def prepare(self) -> None:
        """Create the tenants and definitions."""
        await self._recorded.prepare()

    async def run(self, seconds: float) -> None:
        """Work for some time."""
        turns = [
            *[self._enqueue] * 3,
            *[self._work_on_some] * 4,
            self._work_in_order,
            self._claim_poison,
            self._use_old_attempt,
            *[self._cancel_retry_or_change] * 2,
        ]
        async with asyncio.TaskGroup() as group:
            for turn in turns:
                group.create_task(self._repeat(turn))
            await asyncio.sleep(seconds)
            self._stopping = True

    async def drain(self, seconds: float) -> bool:
        """Finish all jobs, including poisoned ones, without failures. Return whether that succeeded in time."""
        async with asyncio.TaskGroup() as group:
            for turn in (*[self._finish] * 4, self._claim_poison):
                group.create_task(self._repeat(turn))
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

    async def _repeat(self, turn: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self._stopping:
            await turn()
            await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0, 2 * PAUSE_SECONDS))

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    # -- turns ----------------------------------------------------------------------------------------------

    async def _enqueue(self) -> None:
        if self._queued > QUEUED_MAX:
            self._queued -= 1
            return
        jobs = [self._random_job() for _ in range(self._random.choice((1, 1, 1, 1, 2, 5, 12)))]
        enqueued = await self._recorded.enqueue(*jobs, alone=len(jobs) == 1 and self._chance(0.5))
        self._queued += len(enqueued)
        self._recent_jobs.extend((each.job.tenant, each.job.id) for each in enqueued if each.job.type in CHANGED_TYPES)

    def _random_job(self) -> dict[str, Any]:
        kind = self._random.random()
        type = self._random.choices(list(DEFINITIONS), weights=(60, 20, 15, 5))[0]
        job: dict[str, Any] = {
            "tenant": self._random.choice(self._recorded.tenants),
            "type": type,
            "priority": self._random.choice((None, None, None, 1, 3, 5)),
            "delay": self._random.uniform(0, DELAY_SECONDS_MAX) if self._chance(0.3) else None,
            "tags": ("a", "b") if self._chance(0.1) else (),
        }
        if type in CHANGED_TYPES and kind < 0.2:
            key = f"key-{self._random.randrange(300)}"
            return job | {"idempotency_key": key, "payload": {"key": key, "version": int(self._chance(0.15))}}
        if type in CHANGED_TYPES and kind < 0.3:
            return job | {"dedupe_key": f"dedupe-{self._random.randrange(60)}"}
        if type in CHANGED_TYPES and kind < 0.45 and self.uses_dependencies:
            return job | self._dependencies(job["tenant"])
        return job

    def _dependencies(self, tenant: str) -> dict[str, Any]:
        """Choose recent jobs of the same tenant, in any state, as dependencies."""
        candidates = [job_id for owner, job_id in self._recent_jobs if owner == tenant][-30:]
        parents = self._random.sample(candidates, min(len(candidates), self._random.choice((1, 1, 2, 4))))
        return {"after": parents, "on_dead": self._random.choice(list(OnDead))} if parents else {}

    async def _claim(self, *types: str, limit: int, tenant: str | None = None, wait: float = 0) -> list[Claim]:
        claims = await self._recorded.claim(*types, limit=limit, tenant=tenant, wait=wait)
        self._queued -= len(claims)
        return claims

    async def _work_on_some(self) -> None:
        types = self._random.choice((["plain"], ["flaky"], ["plain", "flaky"]))
        tenant = self._random.choice((None, None, *self._recorded.tenants))
        wait = 0.02 if self._chance(0.2) else 0.0
        claims = await self._claim(*types, limit=self._random.choice((1, 1, 3, 8)), tenant=tenant, wait=wait)
        attempts = [attempt_of(claim) for claim in claims]
        if attempts and self._chance(0.2):
            if self._attempts and self._chance(0.5):
                attempts.insert(self._random.randrange(len(attempts) + 1), self._random.choice(self._attempts))
            await self._recorded.settle_many(attempts, self._outcome)
            return
        for attempt in attempts:
            await self._work_on(attempt)

    async def _work_on(self, attempt: HeldAttempt) -> None:
        self._attempts.append(attempt)
        if self._chance(0.1):
            return  # The worker stops without settling.
        for _ in range(self._random.choice((0, 0, 0, 1, 2))):
            await self._recorded.beat(attempt)
        settled_outcome = await self._recorded.settle(attempt, self._outcome)
        if self._chance(0.15):
            await self._recorded.settle(attempt, lambda number: settled_outcome)
        if self._chance(0.1):
            await self._recorded.settle(attempt, self._outcome)

    async def _work_in_order(self) -> None:
        for claim in await self._claim("line", limit=self._random.choice((1, 2, 5)), wait=0.02):
            await self._recorded.settle(attempt_of(claim), done)

    async def _claim_poison(self) -> None:
        await self._claim("poison", limit=2, wait=0.05)

    async def _finish(self) -> None:
        for claim in await self._claim("plain", "flaky", "line", limit=20, wait=0.3):
            await self._recorded.settle(attempt_of(claim), done)

    async def _use_old_attempt(self) -> None:
        """Heartbeat or settle an old attempt, or one that never existed."""
        if not self._attempts:
            return
        old_attempt = self._random.choice(self._attempts)
        attempt = HeldAttempt(old_attempt.job_id, old_attempt.fence + self._random.choice((0, 0, 0, 0, -1, 1, 2**32)))
        if self._chance(0.4):
            await self._recorded.beat(attempt)
        else:
            await self._recorded.settle(attempt, self._outcome)

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

    async def _cancel_retry_or_change(self) -> None:
        if not self._recent_jobs:
            return
        tenant, job_id = self._random.choice(self._recent_jobs)
        run_at = self._clock.micros() + self._random.randrange(round(DELAY_SECONDS_MAX * MICROS))
        match self._random.choices(("cancel", "retry", "change"), weights=(25, 45, 30))[0]:
            case "cancel":
                await self._recorded.cancel(tenant, job_id)
            case "retry":
                run_time = run_at if self._chance(0.5) else None
                await self._recorded.retry(tenant, job_id, reset=self._chance(0.3), run_at=run_time)
            case _:
                priority = self._random.choice((None, 1, 4))
                await self._recorded.change(tenant, job_id, priority=priority, run_at=run_at)
