"""Handlers that run in a process of their own: another process finds them by name."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ingot
from ingot.worker import NoRetry, Worker, WorkerJob

worker = Worker()
left_behind: list[int] = []


@worker.handler("isolated", isolate=True, concurrency=4, memory_mb=512, timeout="20s")
def isolated(job: WorkerJob) -> Any:
    match job.payload:
        case "work":
            job.progress(40, "at it")
            print("printed")
            job.log("logged")
            subprocess.run(["/bin/echo", "said by a child"], check=True)
            os.write(1, b"\xff\xfe binary\n")
            return {"uid": os.getuid(), "pid": os.getpid()}
        case "environment":
            seen = subprocess.run(["/usr/bin/env"], check=True, capture_output=True, text=True)
            return sorted(line.partition("=")[0] for line in seen.stdout.splitlines() if "INGOT_" in line)
        case "exit":
            os._exit(3)
        case "escape":
            told, telling = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if (pid := os.fork()) == 0:
                    time.sleep(60)
                    os._exit(0)
                os.write(telling, b"%d" % pid)
                os._exit(0)
            return int(os.read(told, 20))
        case "look around":
            around = Path(job.workdir()).parent
            listed = len(list(around.iterdir())) if os.access(around, os.R_OK) else 0
            return {"uid": os.getuid(), "room": str(job.workdir()), "seen": listed}
        case ["read", str(room)]:
            return os.access(room, os.R_OK | os.X_OK)
        case "leave":
            if os.fork() == 0:
                os.setsid()
                time.sleep(30)
                os._exit(0)
            os._exit(3)
        case "memory":
            return len(bytearray(2 * 1024**3))
        case "sleep":
            time.sleep(60)
        case "client":
            ingot.Client().submit("other")
        case "never":
            raise NoRetry("never")
        case "remember":
            left_behind.append(os.getpid())
            return left_behind
        case "linger":
            threading.Thread(target=time.sleep, args=[600]).start()
            return "said"
        case {"together": place}:
            return _descriptors_beside_another(Path(place))
        case {"secret": secret}:
            return [place for place in ("self", str(os.getppid())) if secret in _environment(place)]
        case "later":
            job.snooze("1h")
        case {"endless": place}:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["/bin/sleep", "600"])
            Path(place).write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
            job.progress(1)
            time.sleep(600)
    raise ValueError(job.payload)


def _descriptors_beside_another(folder: Path) -> list[str]:
    """What this process has open while another one runs."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 30
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # The list itself was read from one.
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def _environment(process: str) -> str:
    try:
        return Path(f"/proc/{process}/environ").read_text(encoding="utf-8")
    except PermissionError:
        return ""
