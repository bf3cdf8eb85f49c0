"""graphile-worker, a program of its own on Node: installed below .bench from the lock beside its script."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.postgres.adapter import CALLERS, DriveOptions, RunRequest, System
from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.folders import bench_folder

SOURCES: Final = Path(__file__).parent / "graphile"
VERSION: Final[str] = json.loads((SOURCES / "package.json").read_text())["dependencies"]["graphile-worker"]


def place() -> Path:
    """The folder it runs in, made when it is missing. Raises `Missing` when Node is not there or npm fails."""
    folder = bench_folder() / f"graphile-worker-{VERSION}"
    folder.mkdir(exist_ok=True)
    for source in SOURCES.iterdir():
        shutil.copy(source, folder / source.name)
    if not (folder / "node_modules" / ".package-lock.json").exists():
        _install(folder)
    return folder


def _install(folder: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise MissingDependency(
            "graphile-worker needs Node 20 and npm. Debian: apt-get install nodejs npm; or leave it out: --only"
        )
    command = ["npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingDependency(f"npm could not install graphile-worker: {done.stderr.strip()[-300:]}")


FOLDER: Final = place()


def command(request: RunRequest) -> list[str]:
    return ["node", str(FOLDER / "bench.mjs"), msgspec.json.encode(request).decode()]


def _queue(workers: int, local: int) -> DriveOptions:
    batching = f"local queue {local}, completions batched" if local > 1 else "no local queue"
    return DriveOptions(
        workers=workers, claim_jobs=local, connections=workers + 1, label=f"{workers} jobs at once, {batching}"
    )


# 24 jobs at once and a local queue of 500 is what its page on performance measures with.
SYSTEM = System(
    name="graphile",
    version=VERSION,
    run_jobs=60_000,
    command=command,
    options={
        "single": tuple(
            DriveOptions(callers=CALLERS, connections=connections, label=f"32 callers, {connections} connections")
            for connections in (32, 10)
        ),
        "bulk": tuple(
            DriveOptions(callers=callers, batch_jobs=jobs, label=f"{callers} callers, batches of {jobs}")
            for callers, jobs in ((4, 1000), (2, 2000))
        ),
        "run": (_queue(24, 500), _queue(12, 500), _queue(24, 1000)),
        "latency": (_queue(24, 500), _queue(4, 1)),
        "held": (_queue(24, 500),),
    },
)
