"""Example request bodies for the API documentation, by operation ID."""

from __future__ import annotations

from typing import Any, Final

JOB_ID: Final = "01a00000-0000-7000-8000-000000000001"

EXAMPLES: Final[dict[str, Any]] = {
    "jobs_create": {"type": "greet", "payload": {"name": "Ada"}},
    "jobs_create_many": {
        "jobs": [{"type": "greet", "payload": {"name": "Ada"}}, {"type": "greet", "payload": {"name": "Grace"}}]
    },
    "files_download": {"fence": 1, "name": "report.pdf"},
    "files_begin": {"fence": 1, "name": "summary.txt", "size": 11},
    "files_sign_parts": {"fence": 1, "parts": [{"number": 1, "size": 16_777_216, "sha256": "0" * 64}]},
    "files_renew": {"fence": 1},
    "files_complete": {"fence": 1},
    "jobs_change": {"priority": 1},
    "jobs_retry": {"reset_attempts": True},
    "jobs_act": {"action": "cancel", "filter": {"type": "greet", "tag": "old"}, "dry_run": True},
    "work_claim": {"worker_id": "me", "types": ["greet"], "wait_seconds": 5},
    "work_settle": {
        "jobs": [
            {"id": JOB_ID, "fence": 1, "outcome": "succeeded", "result": "Hello, Ada"},
            {"id": JOB_ID, "fence": 1, "outcome": "failed", "error": "out of paper"},
        ]
    },
    "work_heartbeat": {"fence": 1, "progress": {"percent": 40}},
    "work_complete": {"fence": 1, "result": "Hello, Ada"},
    "work_fail": {"fence": 1, "error": "out of paper"},
    "work_release": {"fence": 1},
    "work_snooze": {"fence": 1, "seconds": 60},
    "workers_register": {"id": "press/host-1", "types": ["greet"], "hostname": "host-1"},
    "workers_heartbeat": {"jobs": [{"id": JOB_ID, "fence": 1, "progress": {"percent": 40}}], "wait_seconds": 5},
    "events_publish": {"name": "order.paid", "data": {"order": 17}, "dedupe_key": "order-17-paid"},
    "keys_purge": {"owner": "token:01a00000000070008000000000000001", "dry_run": True},
    "blobs_begin": {"size": 11, "key": "docs/hello.txt", "original_name": "hello.txt"},
    "blobs_sign_parts": {"parts": [{"number": 1, "size": 16_777_216, "sha256": "0" * 64}]},
    "blobs_complete": {},
    "blobs_collect": {"dry_run": True},
    "admin_create_tenant": {"slug": "acme"},
    "admin_change_tenant": {"weight": 2},
    "admin_put_definition": {"max_attempts": 3, "timeout_seconds": 300},
    "admin_create_token": {
        "description": "the shop",
        "grants": [{"action": "jobs.create", "resource": "jobs/greet"}],
    },
    "people_put_member": {"email": "ada@example.com", "role": "member"},
    "people_change_member": {"role": "viewer"},
    "me_create_token": {"description": "my laptop", "grants": [{"action": "jobs.read"}]},
    "admin_create_worker": {"id": "press", "types": ["greet"]},
}
