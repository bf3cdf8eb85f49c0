"""Find documents for `ingot ingest` by their names, and check their content before they are sent."""

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

IN_MEMORY_BYTES_MAX: Final = 1024 * 1024  # Files of up to this size are read only once and kept until they are sent.
HEAD_BYTES: Final = 1024  # Must not be less than the maximum size of a Git LFS pointer.
_PDF_SIGNATURE: Final = re.compile(rb"%PDF-")
# PNG, JPEG, TIFF (both byte orders; classic and BigTIFF), WebP, BMP.
_IMAGE_SIGNATURES: Final = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|II[*+]\0|MM\0[*+]|RIFF....WEBP|BM", re.DOTALL)
PDF_SUFFIXES: Final = frozenset({".pdf"})
IMAGE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp"})
# Suffixes of the files that a folder contributes with --type. Types that are not listed take every file.
SUFFIXES_BY_TYPE: Final = {
    "pdf": PDF_SUFFIXES,
    "ocr": PDF_SUFFIXES | IMAGE_SUFFIXES,
    "image": IMAGE_SUFFIXES,
}
# Reasons for skipping files. Each follows a number in the summary: "Skipped: 3 broken links."
SKIPPED_OTHER_KIND: Final = "of another type"
SKIPPED_BY_PATTERN: Final = "excluded by --include or --exclude"
SKIPPED_NOT_A_FILE: Final = "not regular files"
SKIPPED_BROKEN_LINK: Final = "broken links"
PATTERN_HINT: Final = "Valid patterns are, for example, '*.pdf', 'reports/**/*.pdf' and 'scan-[0-9]?.png'."
GLOB_CHARACTERS: Final = re.compile(r"[*?\[]")


class ContentMismatch(InvalidInput):
    """The content of a file does not match its suffix."""

    code = "unlike_its_name"
    hint = "Check the file. With --type, a file that you name explicitly is sent without this check."


class DocumentFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to ingest.

    `relative_path` starts at the folder or pattern that the user named. With `check_content`, the content must match
    the suffix.
    """

    path: Path
    relative_path: Path
    type: str
    size: int
    check_content: bool = True


class DocumentSelection(msgspec.Struct, frozen=True):
    """The documents to ingest, in order, and the number of skipped files by reason."""

    documents: list[DocumentFile]
    skipped: Counter[str]


class DocumentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions for ingesting a file: `--type`, `--include` and `--exclude`."""

    type: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def job_type(self, path: Path, *, named: bool) -> str | None:
        """Return the job type for a file, or `None` to skip the file.

        `named` is true for a file that the user named, rather than its folder or a pattern.
        """
        suffix = path.suffix.lower()
        if self.type is not None:
            return self.type if named or suffix in SUFFIXES_BY_TYPE.get(self.type, {suffix}) else None
        return "pdf" if suffix in PDF_SUFFIXES else "ocr" if suffix in IMAGE_SUFFIXES else None

    def matches_patterns(self, relative_path: Path) -> bool:
        """Check `--include` and `--exclude`. A pattern without a slash is compared with the file name only."""
        included = not self.include or any(_matches(pattern, relative_path) for pattern in self.include)
        return included and not any(_matches(pattern, relative_path) for pattern in self.exclude)


def find_documents(
    paths: Sequence[Path], document_filter: DocumentFilter, print_message: Callable[[str], object]
) -> DocumentSelection:
    """Find the documents in files, folders and patterns. Raises `InvalidInput` for any other path.

    Files that have disappeared and folders that cannot be read are reported and skipped.
    """
    selection = DocumentSelection([], Counter())
    seen: set[str] = set()
    for path, relative_path, named in _walk_paths(paths, print_message):
        absolute = os.path.abspath(path)
        if absolute in seen:
            continue
        seen.add(absolute)
        type = document_filter.job_type(path, named=named)
        if type is None and named:
            raise InvalidInput(
                f"{path} does not have the suffix of a PDF or an image", hint="Set the job type with --type."
            )
        if type is None:
            selection.skipped[SKIPPED_OTHER_KIND] += 1
        elif not document_filter.matches_patterns(relative_path):
            selection.skipped[SKIPPED_BY_PATTERN] += 1
        elif (size := _file_size(path, selection.skipped, print_message)) is not None:
            document = DocumentFile(
                path=path,
                relative_path=relative_path,
                type=type,
                size=size,
                check_content=document_filter.type is None or (document_filter.type in SUFFIXES_BY_TYPE and not named),
            )
            selection.documents.append(document)
        elif named:
            raise InvalidInput(f"{path} is not a regular file", hint="Copy the content to a file and ingest that.")
    return selection


def read_document(document: DocumentFile) -> bytes | Path:
    """Return what to send for a document: the content of a small file, or the path of a large one.

    Raises `FileRefused`, `ContentMismatch`, or `PointerUnresolved` if the file of a Git LFS pointer is not available.
    """
    with translate_os_errors(f"{document.path} cannot be read"):
        source, head = _content_and_head(document.path)
        if is_pointer(head):
            source, head = _content_and_head(resolve_pointer(document.path, head))
    _check_content(document, head)
    return source


def check_document(document: DocumentFile) -> None:
    """Raise the errors of `read_document` without reading all of the document. Git LFS pointers are not resolved."""
    with translate_os_errors(f"{document.path} cannot be read"), document.path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if not is_pointer(head):
        _check_content(document, head)


def _check_content(document: DocumentFile, head: bytes) -> None:
    if document.check_content and not _has_signature(document.path.suffix.lower(), head[:HEAD_BYTES]):
        problem = "is empty" if not head else f"is not a {document.path.suffix.lower()} file"
        raise ContentMismatch(f"the content of {document.path} does not match its name: it {problem}")


def _content_and_head(path: Path) -> tuple[bytes | Path, bytes]:
    """Return the content of a small file or the path of a large one, and the first bytes of the file."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > IN_MEMORY_BYTES_MAX:
            return path, file.read(HEAD_BYTES)
        content = file.readall()
    return content, content


def _has_signature(suffix: str, head: bytes) -> bool:
    return bool(_PDF_SIGNATURE.search(head) if suffix in PDF_SUFFIXES else _IMAGE_SIGNATURES.match(head))


# -- search ---------------------------------------------------------------------------------------------------


def _walk_paths(paths: Iterable[Path], print_message: Callable[[str], object]) -> Iterator[tuple[Path, Path, bool]]:
    """Yield each file, its path relative to the named folder or pattern, and whether the file was named itself."""

    def report_unreadable(error: OSError) -> None:
        print_message(f"Skipped: {error.filename} cannot be read: {error.strerror}.")

    for path in paths:
        if path.is_dir():
            for file in walk_files(path, include_hidden=False, on_error=report_unreadable):
                yield file, file.relative_to(path), False
        elif path.exists():
            yield path, Path(path.name), True
        elif path.is_symlink():
            raise InvalidInput(f"{path} is a broken link", hint="Name the file itself.")
        elif GLOB_CHARACTERS.search(str(path)):
            yield from _walk_pattern(path, report_unreadable)
        else:
            raise InvalidInput(f"{path} does not exist", hint="Name a file, a folder, or a pattern in quotes.")


def _walk_pattern(pattern: Path, on_error: Callable[[OSError], object]) -> Iterator[tuple[Path, Path, bool]]:
    """Yield the files that match a pattern, with paths relative to the last folder before its first wildcard."""
    base_length = next(n for n, part in enumerate(pattern.parts) if GLOB_CHARACTERS.search(part))
    base, glob = Path(*pattern.parts[:base_length]), "/".join(pattern.parts[base_length:])
    depth_max = None if "**" in pattern.parts else len(pattern.parts) - base_length - 1
    for file in walk_files(base, include_hidden=False, depth_max=depth_max, on_error=on_error):
        relative_path = file.relative_to(base)
        if _compile_glob(glob).fullmatch(relative_path.as_posix()):
            yield file, relative_path, False


def _matches(pattern: str, relative_path: Path) -> bool:
    text = relative_path.as_posix() if "/" in pattern else relative_path.name
    return _compile_glob(pattern).fullmatch(text) is not None


@lru_cache(maxsize=256)
def _compile_glob(pattern: str) -> re.Pattern[str]:
    """Compile a shell pattern. `**` matches any number of folders, `*`, `?` and `[…]` match within one name.

    Raises `InvalidInput`.
    """
    regex_parts: list[str] = []
    for token in re.findall(r"\*\*/|\*\*$|\*+|\?|\[!?\]?[^\]/]*\]|.", pattern.removeprefix("./"), re.DOTALL):
        if token == "**/":
            regex_parts.append("(?:[^/]+/)*")
        elif token == "**":
            regex_parts.append(".*")
        elif token[0] == "*":
            regex_parts.append("[^/]*")
        elif token == "?":
            regex_parts.append("[^/]")
        elif len(token) > 1:
            characters = re.sub(r"([\\\[\]^&|~])", r"\\\1", token[1:-1])
            regex_parts.append(f"[^/{characters[1:]}]" if characters.startswith("!") else f"(?!/)[{characters}]")
        else:
            regex_parts.append(re.escape(token))
    try:
        return re.compile("".join(regex_parts), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"the pattern {pattern[:64]!r} is not valid: {error}", hint=PATTERN_HINT) from None


def _file_size(path: Path, skipped: Counter[str], print_message: Callable[[str], object]) -> int | None:
    """Return the size of a regular file. For anything else, count it in `skipped` and return `None`."""
    try:
        status = path.stat()
    except OSError as error:
        print_message(f"Skipped: {path} is a broken link: {error.strerror}.")
        skipped[SKIPPED_BROKEN_LINK] += 1
        return None
    if not stat.S_ISREG(status.st_mode):
        skipped[SKIPPED_NOT_A_FILE] += 1
        return None
    return status.st_size
