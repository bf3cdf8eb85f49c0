"""The nginx of the comparison: Debian's package, with sendfile, serving a folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.debian_servers import await_port, free_port, program

PACKAGE: Final = "nginx-light"
PROGRAM: Final = "nginx"
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


def version() -> str:
    """Return the version of the installed nginx."""
    text = subprocess.run([program(PROGRAM, package=PACKAGE), "-v"], capture_output=True, text=True, check=True).stderr
    return text.rpartition("/")[2].strip()


@contextmanager
def serving(folder: Path, root: Path) -> Iterator[str]:
    """Serve the files in `root` until the end of the block, and yield the URL. `folder` holds nginx's own files."""
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""
    settings = folder / "nginx.conf"
    settings.write_text(user + SETTINGS.format(folder=folder, root=root, port=port))
    with subprocess.Popen(
        [program(PROGRAM, package=PACKAGE), "-c", str(settings), "-e", str(folder / "error.log")]
    ) as process:
        try:
            await_port(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
