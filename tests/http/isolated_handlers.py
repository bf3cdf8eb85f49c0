"""Isolated handlers. Their child processes import this module by name."""

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
            job.progress(40, "working")
            print("printed")
            job.log("logged")
            subprocess.run(["/bin/echo", "printed by a child"], check=True)
            os.write(1, b"\xff\xfe binary\n")
            return {"uid": os.getuid(), "pid": os.getpid()}
        case "environment":
            printed = subprocess.run(["/usr/bin/env"], check=True, capture_output=True, text=True)
            return sorted(line.partition("=")[0] for line in printed.stdout.splitlines() if "INGOT_" in line)
        case "exit":
            os._exit(3)
        case "escape":
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if (pid := os.fork()) == 0:
                    time.sleep(600)
                    os._exit(0)
                os.write(writer, b"%d" % pid)
                os._exit(0)
            return int(os.read(reader, 20))
        case "workdir":
            parent = Path(job.workdir()).parent
            visible = len(list(parent.iterdir())) if os.access(parent, os.R_OK) else 0
            return {"uid": os.getuid(), "workdir": str(job.workdir()), "visible": visible}
        case ["read", str(workdir)]:
            return os.access(workdir, os.R_OK | os.X_OK)
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
            return "returned"
        case {"together": folder}:
            return _descriptors_beside_another(Path(folder))
        case {"secret": secret}:
            return [process for process in ("self", str(os.getppid())) if secret in _environment(process)]
        case "later":
            job.snooze("1h")
        case {"endless": pid_file}:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            child = subprocess.Popen(["/bin/sleep", "600"])
            Path(pid_file).write_text(f"{os.getpid()} {child.pid}", encoding="utf-8")
            job.progress(1)
            time.sleep(600)
    raise ValueError(job.payload)


def _descriptors_beside_another(folder: Path) -> list[str]:
    """The files that this process has open while another child runs."""
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 30
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # The listing itself used a descriptor, which is closed by now.
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return targets


def _environment(process: str) -> str:
    try:
        return Path(f"/proc/{process}/environ").read_text(encoding="utf-8")
    except PermissionError:
        return ""


def look_up(data: dict[str, str]) -> str:
    return data["name"]


def fail_with_payload(job: WorkerJob) -> str:
    return look_up(job.payload)
