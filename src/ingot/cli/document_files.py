"""Which files are documents, and for which type of job: by their names when looked for, by their bytes when read."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from ingot.cli.git_lfs import is_pointer, resolve_pointer
from ingot.cli.local_files import translate_os_errors, walk_files
from ingot.kernel.errors import InvalidInput

IN_MEMORY_BYTES_MAX: Final = 1024 * 1024  # What is no larger is read once, and kept until it is sent.
HEAD_BYTES: Final = 1024  # As many as a Git LFS pointer has at most, too.
_PDF_SIGNATURE: Final = re.compile(rb"%PDF-")
_IMAGE_SIGNATURES: Final = re.compile(
    rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|II[*+]\0|MM\0[*+]|RIFF....WEBP|BM", re.DOTALL
)  # PNG, JPEG, TIFF of both byte orders and sizes, WebP, BMP.
PDF_SUFFIXES: Final = frozenset({".pdf"})
IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp"})
SUFFIXES_BY_TYPE: Final = {
    "pdf": PDF_SUFFIXES,
    "ocr": PDF_SUFFIXES | IMAGE_SUFFIXES,
    "image": IMAGE_SUFFIXES,
}  # Of a folder; other types take every file.
SKIPPED_OTHER_KIND: Final = "of other kinds"
SKIPPED_BY_PATTERN: Final = "left out by --include or --exclude"
SKIPPED_NOT_A_FILE: Final = "that are no files"
SKIPPED_BROKEN_LINK: Final = "links that lead nowhere"
PATTERN_HINT: Final = "Write it as in '*.pdf', 'reports/**/*.pdf' or 'scan-[0-9]?.png'."
GLOB_CHARACTERS: Final = re.compile(r"[*?\[]")


class ContentMismatch(InvalidInput):
    """The bytes of a file are not what its name says."""

    code = "unlike_its_name"
    hint = "Look at the file; --type takes a file that is named for that type, whatever it holds."


class DocumentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is to be worked on. `place` is its path from what was named on.

    With `checked`, its bytes have to be what its name says.
    """

    path: Path
    relative_path: Path
    type: str
    size: int
    check_content: bool = True


class DocumentSelection(msgspec.Struct, frozen=True):
    """The documents, in order, and how many files were passed over for which reason."""

    documents: list[DocumentFile]
    skipped: Counter[str]


class DocumentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which files are wanted of those that are there."""

    type: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def job_type(self, path: Path, *, named: bool) -> str | None:
        """The type of the job for a file of this name, or `None` when it is not wanted."""
        suffix = path.suffix.lower()
        if self.type is not None:
            return self.type if named or suffix in SUFFIXES_BY_TYPE.get(self.type, {suffix}) else None
        return "pdf" if suffix in PDF_SUFFIXES else "ocr" if suffix in IMAGE_SUFFIXES else None

    def matches_patterns(self, place: Path) -> bool:
        """Whether the patterns let a file in: one without a / is for its name, others are for its path."""
        included = not self.include or any(_matches(one, place) for one in self.include)
        return included and not any(_matches(one, place) for one in self.exclude)


def find_documents(paths: Sequence[Path], wanted: DocumentFilter, say: Callable[[str], object]) -> DocumentSelection:
    """The documents among files, folders and patterns. Raises `InvalidInput` for a path that is no such thing.

    What is not there any more, and folders that cannot be read, are told and passed over.
    """
    found = DocumentSelection([], Counter())
    known: set[str] = set()
    for path, place, named in _walk_paths(paths, say):
        absolute = os.path.abspath(path)
        if absolute in known:
            continue
        known.add(absolute)
        type = wanted.job_type(path, named=named)
        if type is None and named:
            raise InvalidInput(
                f"{path} is no PDF and no picture by its name", hint="Say --type for what it is to be taken for."
            )
        if type is None:
            found.skipped[SKIPPED_OTHER_KIND] += 1
        elif not wanted.matches_patterns(place):
            found.skipped[SKIPPED_BY_PATTERN] += 1
        elif (size := _file_size(path, found.skipped, say)) is not None:
            checked = wanted.type is None or (wanted.type in SUFFIXES_BY_TYPE and not named)
            document = DocumentFile(path=path, relative_path=place, type=type, size=size, check_content=checked)
            found.documents.append(document)
        elif named:
            raise InvalidInput(f"{path} is no file", hint="Store it in a file first, and name that.")
    return found


def read_document(document: DocumentFile) -> bytes | Path:
    """What is sent of a document: its bytes when they are few, or where they are.

    Raises `FileRefused`, `Unlike`, or `PointerUnresolved` for a Git LFS pointer whose file cannot be had.
    """
    with translate_os_errors(f"{document.path} cannot be read"):
        source, head = _content_and_head(document.path)
        if is_pointer(head):
            source, head = _content_and_head(resolve_pointer(document.path, head))
    _check_content(document, head)
    return source


def check_document(document: DocumentFile) -> None:
    """Raises what `read` would, of a document that is not sent; a Git LFS pointer is not followed."""
    with translate_os_errors(f"{document.path} cannot be read"), document.path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not is_pointer(head):
        _check_content(document, head)


def _check_content(document: DocumentFile, head: bytes) -> None:
    if document.check_content and not _has_signature(document.path.suffix.lower(), head[:HEAD_BYTES]):
        what = "is empty" if not head else f"does not begin as a {document.path.suffix.lower()} file"
        raise ContentMismatch(f"{document.path} is not what its name says: it {what}")


def _content_and_head(path: Path) -> tuple[bytes | Path, bytes]:
    """The bytes of a small file, or the path of one that is not; and how it begins."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > IN_MEMORY_BYTES_MAX:
            return path, file.read(HEAD_BYTES)
        content = file.readall()
    return content, content


def _has_signature(suffix: str, head: bytes) -> bool:
    return bool(_PDF_SIGNATURE.search(head) if suffix in PDF_SUFFIXES else _IMAGE_SIGNATURES.match(head))


# -- looking for them -----------------------------------------------------------------------------------------


def _walk_paths(paths: Iterable[Path], say: Callable[[str], object]) -> Iterator[tuple[Path, Path, bool]]:
    """Every file below, its path from what was named on, and whether it was named itself."""

    def refused(error: OSError) -> None:
        say(f"{error.filename} cannot be read: {error.strerror}; it is left out.")

    for path in paths:
        if path.is_dir():
            for file in walk_files(path, include_hidden=False, on_error=refused):
                yield file, file.relative_to(path), False
        elif path.exists():
            yield path, Path(path.name), True
        elif path.is_symlink():
            raise InvalidInput(f"{path} is a link that leads nowhere", hint="Name the file itself.")
        elif GLOB_CHARACTERS.search(str(path)):
            yield from _walk_pattern(path, refused)
        else:
            raise InvalidInput(f"{path} is not there", hint="Check the name; it is a file, a folder or a pattern.")


def _walk_pattern(pattern: Path, refused: Callable[[OSError], object]) -> Iterator[tuple[Path, Path, bool]]:
    """The files that fit a pattern, below the folder before its first sign."""
    fixed = next(n for n, part in enumerate(pattern.parts) if GLOB_CHARACTERS.search(part))
    base, rest = Path(*pattern.parts[:fixed]), "/".join(pattern.parts[fixed:])
    deepest = None if "**" in pattern.parts else len(pattern.parts) - fixed - 1
    for file in walk_files(base, include_hidden=False, depth_max=deepest, on_error=refused):
        place = file.relative_to(base)
        if _compile_glob(rest).fullmatch(place.as_posix()):
            yield file, place, False


def _matches(pattern: str, place: Path) -> bool:
    return _compile_glob(pattern).fullmatch(place.as_posix() if "/" in pattern else place.name) is not None


@lru_cache(maxsize=256)
def _compile_glob(text: str) -> re.Pattern[str]:
    """A pattern of a shell: * and ? and […] stay in one folder, and ** is any number. Raises `InvalidInput`."""
    signs: list[str] = []
    for sign in re.findall(r"\*\*/|\*\*$|\*+|\?|\[!?\]?[^\]/]*\]|.", text.removeprefix("./"), re.DOTALL):
        if sign == "**/":
            signs.append("(?:[^/]+/)*")
        elif sign == "**":
            signs.append(".*")
        elif sign[0] == "*":
            signs.append("[^/]*")
        elif sign == "?":
            signs.append("[^/]")
        elif len(sign) > 1:
            inside = re.sub(r"([\\\[\]^&|~])", r"\\\1", sign[1:-1])
            signs.append(f"[^/{inside[1:]}]" if inside.startswith("!") else f"(?!/)[{inside}]")
        else:
            signs.append(re.escape(sign))
    try:
        return re.compile("".join(signs), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"the pattern {text[:64]!r} cannot be read: {error}", hint=PATTERN_HINT) from None


def _file_size(path: Path, skipped: Counter[str], say: Callable[[str], object]) -> int | None:
    """How large a file is; `None` for what is none, which is counted."""
    try:
        known = path.stat()
    except OSError as error:
        say(f"{path} leads nowhere: {error.strerror}; it is left out.")
        skipped[SKIPPED_BROKEN_LINK] += 1
        return None
    if not stat.S_ISREG(known.st_mode):
        skipped[SKIPPED_NOT_A_FILE] += 1
        return None
    return known.st_size
