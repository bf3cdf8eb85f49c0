"""The shapes of the requests and responses of workers, and those that were recorded for each version of the protocol.

Run `python -m tests.worker_protocol` to record the current shapes, after `PROTOCOL` was raised or for new optional
fields.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import msgspec

from ingot.jobs.model import Job, Progress
from ingot.wire.jobs import (
    AttemptFailed,
    AttemptReleased,
    AttemptSnoozed,
    AttemptSucceeded,
    ClaimRequest,
    ClaimResponse,
    SettleRequest,
    SettleResponse,
    SettleResult,
)
from ingot.wire.protocol import PROTOCOL
from ingot.wire.workers import (
    JobHeartbeat,
    JobLeaseStatus,
    RegisterWorkerRequest,
    RegisterWorkerResponse,
    WorkerHeartbeatRequest,
    WorkerHeartbeatResponse,
)

REQUESTS: Final = (
    RegisterWorkerRequest,
    ClaimRequest,
    WorkerHeartbeatRequest,
    JobHeartbeat,
    Progress,
    SettleRequest,
    AttemptSucceeded,
    AttemptFailed,
    AttemptSnoozed,
    AttemptReleased,
)
RESPONSES: Final = (
    RegisterWorkerResponse,
    ClaimResponse,
    Job,
    Progress,
    WorkerHeartbeatResponse,
    JobLeaseStatus,
    SettleResponse,
    SettleResult,
)
RECORDED: Final = Path(__file__).parent / "unit" / f"worker_protocol_{PROTOCOL}.json"
Shape = dict[str, str]  # The type of each field, by name.


def shape_of(struct: type[msgspec.Struct]) -> Shape:
    """Return the fields of a struct with their types. Required ones are marked."""
    return {
        field.encode_name: f"{field.type}{' (required)' if field.required else ''}"
        for field in msgspec.structs.fields(struct)
    }


def current_shapes() -> dict[str, dict[str, Shape]]:
    """Return the shapes of all requests and responses."""
    return {
        "requests": {struct.__name__: shape_of(struct) for struct in REQUESTS},
        "responses": {struct.__name__: shape_of(struct) for struct in RESPONSES},
    }


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(current_shapes(), indent=1) + "\n", encoding="utf-8")
