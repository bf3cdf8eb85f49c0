"""The nginx that is measured beside: Debian's, with sendfile, on a folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.queue.adapter import Missing
from tests.postgres import install_debian

PACKAGE: Final = "nginx-light"
PROGRAM: Final = "nginx"
PLACES: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"
START_SECONDS_MAX: Final = 10.0
SETTINGS: Final = """
daemon off;
worker_processes auto;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {root};
    }}
}}
"""


def program() -> str:
    """The server, installed when it is missing and we may. Raises `Missing`."""
    found = shutil.which(PROGRAM, path=PLACES)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        install_debian(PACKAGE)
        found = shutil.which(PROGRAM, path=PLACES)
    if found is None:
        raise Missing(f"there is no {PROGRAM}; install Debian's package {PACKAGE}")
    return found


def version() -> str:
    """As it says itself."""
    text = subprocess.run([program(), "-v"], capture_output=True, text=True, check=True).stderr
    return text.rpartition("/")[2].strip()


@contextmanager
def serving(folder: Path, root: Path) -> Iterator[str]:
    """A server of the files in `root`, with its own in `folder`, ended at the end of the block; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    user = "user root;" if os.geteuid() == 0 else ""
    settings = folder / "nginx.conf"
    settings.write_text(user + SETTINGS.format(folder=folder, root=root, port=port))
    with subprocess.Popen([program(), "-c", str(settings), "-e", str(folder / "error.log")]) as running:
        try:
            _await(port, running)
            yield f"http://127.0.0.1:{port}"
        finally:
            running.terminate()


def _await(port: int, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if running.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"{PROGRAM} does not start") from None
            time.sleep(0.02)
