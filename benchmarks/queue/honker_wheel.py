"""Downloads honker's wheel, verifies its digest, and unpacks it below `.bench`.

Its Linux wheel requires glibc 2.38 only because of the SQLite library that it contains. On an older glibc, that file is
replaced by the SQLite library of the system.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.queue.adapter import MissingDependency
from benchmarks.queue.folders import bench_folder

VERSION: Final = "0.5.0"
GLIBC_NEEDED: Final = (2, 38)


@dataclass(frozen=True, slots=True)
class Wheel:
    tag: str
    sha256: str


WHEELS: Final = {
    ("Linux", "x86_64"): Wheel(
        "manylinux_2_38_x86_64", "c61cc173db699f5fbbc09f1821069416e8874075e16ee571d76c75a7be96e37e"
    ),
    ("Linux", "aarch64"): Wheel(
        "manylinux_2_38_aarch64", "ed99bd11a5dc47714b5484c8ba3dc12e10b6a871c610acff3488da822f3a34a4"
    ),
    ("Darwin", "arm64"): Wheel("macosx_11_0_arm64", "e7d7a1c566d6f9b43abe2f17115d7859b57e922dccd73f2edf16d07fd77d85bd"),
    ("Darwin", "x86_64"): Wheel(
        "macosx_10_12_x86_64", "190a827be3485af2aef66320adbbcba2a3595a03e6c4afe3bcd7f26e3961de82"
    ),
}


def honker_folder() -> Path:
    """Return the folder to import honker from. It is downloaded at the first use. Raises `MissingDependency`."""
    target = bench_folder() / f"honker-{VERSION}"
    if not target.is_dir():
        with tempfile.TemporaryDirectory(dir=bench_folder()) as scratch:
            unpacked = Path(scratch) / "unpacked"
            with zipfile.ZipFile(_fetch(Path(scratch))) as archive:
                archive.extractall(unpacked)
            if _glibc_is_old():
                _use_system_sqlite(unpacked)
            unpacked.rename(target)
    return target


def _fetch(folder: Path) -> Path:
    key = (platform.system(), platform.machine())
    wheel = WHEELS.get(key)
    if wheel is None:
        raise MissingDependency(
            f"honker {VERSION} has no pinned wheel for {' '.join(key)}. Add its tag and sha256 to WHEELS."
        )
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--platform", wheel.tag, "--dest", str(folder), f"honker=={VERSION}"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("honker-*.whl"))
    if process.returncode or not wheels:
        last_line = process.stderr.strip().splitlines()[-1:] or ["pip printed no error"]
        raise MissingDependency(
            f"honker {VERSION} could not be downloaded ({last_line[0]}). Check that pip reaches a package index. Run "
            f"`{' '.join(['pip', *command[3:-3], f'honker=={VERSION}'])}` by hand to see why."
        )
    digest = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise MissingDependency(
            f"The honker wheel has sha256 {digest}, but {wheel.sha256} is pinned. It is not the published file."
        )
    return wheels[0]


def _glibc_is_old() -> bool:
    library, version = platform.libc_ver()
    return library == "glibc" and tuple(int(part) for part in version.split(".")[:2]) < GLIBC_NEEDED


def _use_system_sqlite(unpacked: Path) -> None:
    (bundled,) = (unpacked / "honker.libs").glob("libsqlite3-*.so*")
    shutil.copyfile(_system_sqlite(), bundled)


def _system_sqlite() -> Path:
    """Return the path of the system's SQLite library, which is read from the memory map after loading it."""
    try:
        ctypes.CDLL("libsqlite3.so.0")
    except OSError as error:
        raise MissingDependency(
            "honker needs the system's SQLite library on this glibc. Install it: apt-get install libsqlite3-0"
        ) from error
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith("libsqlite3.so"):
            return Path(path)
    raise MissingDependency("libsqlite3.so.0 was loaded, but its file cannot be found in /proc/self/maps.")
