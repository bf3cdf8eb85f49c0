"""The examples of the page about transactions: its Python, and then its SQL, run by an application role."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.jobs import JobStatus
from tests.app_database import open_app_database
from tests.waiting import SECONDS_MAX

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "enqueue-in-a-transaction.md"
BLOCK = re.compile(r"^```(python|sql)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.postgres
async def test_the_examples_of_the_transaction_page_work(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [kind for kind, _ in blocks] == ["python", "sql", "sql"]
    async with open_app_database() as app_db:
        program = blocks[0][1].replace("postgresql://shop@db/shop", app_db.app_url)
        command = [sys.executable, "-c", program]
        done = await asyncio.to_thread(
            subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        job_id, status = done.stdout.split()
        assert (await app_db.jobs.get(app_db.tenant, job_id)).status == status == JobStatus.QUEUED
        admin = await app_db.connect("postgres")
        await admin.execute("GRANT CREATE ON SCHEMA public TO shop")
        app = await app_db.connect()
        for _, statements in blocks[1:]:
            await app.execute(statements)
        jobs = (await app_db.jobs.list(app_db.tenant)).items
        assert sorted(job.type for job in jobs) == ["mail", "mail", "mail", "pack"]
        names = [event.name for event in await app_db.all_events()]
        assert names == ["job.created", "order.placed", "job.created", "job.created", "order.placed", "job.created"]
        assert await app.fetchval("SELECT count(*) FROM orders") == 3
