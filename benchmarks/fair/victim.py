"""The tenant that is measured: a small mix of requests at a steady pace, which leaves the server mostly idle."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any, Final

CYCLES_PER_SECOND: Final = 40  # Of six requests each.
WAIT_SECONDS_MAX: Final = 60


class Victim:
    """One client of the tenant, with one connection."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS_MAX)
        self._headers = {"authorization": f"Bearer {token}"}
        self._number = 0
        self.failures = 0

    def measure(self, seconds: float) -> list[float]:
        """Return the milliseconds of each call in a window."""
        latencies: list[float] = []
        next_cycle = time.perf_counter()
        end = next_cycle + seconds
        while time.perf_counter() < end:
            latencies += self._cycle()
            next_cycle = max(next_cycle + 1 / CYCLES_PER_SECOND, time.perf_counter())
            time.sleep(max(0.0, next_cycle - time.perf_counter()))
        return latencies

    def close(self) -> None:
        self._connection.close()

    def _cycle(self) -> Iterator[float]:
        self._number += 1
        job, took = self._call("POST", "/jobs", {"type": "small", "payload": {"n": self._number}})
        yield took
        yield self._call("GET", f"/jobs/{job.get('id')}")[1]
        claimed, claim_took = self._call("POST", "/jobs/claim", {"types": ["small"], "worker_id": "victim"})
        settle_took = 0.0
        for claim in (claimed or {}).get("jobs", []):
            settle_took = self._call("POST", f"/jobs/{claim['id']}/complete", {"fence": claim["fence"]})[1]
        yield claim_took + settle_took  # One step for a worker.
        yield self._call("PUT", f"/keys/small/{self._number}", b"small")[1]
        yield self._call("GET", f"/keys/small/{self._number}")[1]

    def _call(self, method: str, path: str, body: Any = None) -> tuple[Any, float]:
        data, headers = body, self._headers
        if body is not None and not isinstance(body, bytes):
            data, headers = json.dumps(body).encode(), {**headers, "content-type": "application/json"}
        began = time.perf_counter()
        self._connection.request(method, f"/api/v1{path}", body=data, headers=headers)
        response = self._connection.getresponse()
        content = response.read()
        took = 1000 * (time.perf_counter() - began)
        if response.status >= 400:
            self.failures += 1
            return {}, took
        return (json.loads(content) if content and path.startswith("/jobs") else None), took
