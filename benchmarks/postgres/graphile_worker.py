"""graphile-worker, a program on Node.js. It is installed below `.bench` from the lock file beside its script."""

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


def prepare_folder() -> Path:
    """Return the folder of the program, and install it there if necessary. Raises `MissingDependency`."""
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
            "graphile-worker needs Node.js 20 and npm. Debian: apt-get install nodejs npm. Or select others: --only."
        )
    command = ["npm", "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode:
        raise MissingDependency(f"npm could not install graphile-worker: {process.stderr.strip()[-300:]}")


FOLDER: Final = prepare_folder()


def command(request: RunRequest) -> list[str]:
    return ["node", str(FOLDER / "bench.mjs"), msgspec.json.encode(request).decode()]


def _jobs_at_once(workers: int, local_queue: int) -> DriveOptions:
    batching = f"local queue {local_queue}, completions batched" if local_queue > 1 else "no local queue"
    return DriveOptions(
        workers=workers, claim_jobs=local_queue, connections=workers + 1, label=f"{workers} jobs at once, {batching}"
    )


# Its page on performance uses 24 jobs at once and a local queue of 500.
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
        "run": (_jobs_at_once(24, 500), _jobs_at_once(12, 500), _jobs_at_once(24, 1000)),
        "latency": (_jobs_at_once(24, 500), _jobs_at_once(4, 1)),
        "held": (_jobs_at_once(24, 500),),
    },
)
