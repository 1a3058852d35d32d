"""Reads files whole, compressed or not, and writes them under a temporary name first."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_rl.errors import EnvironmentMissing, InputError

Progress = Callable[[str, int, int], None]  # what is being done, bytes done, bytes in all

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_SUFFIXES = (".gz", ".xz", ".zst")
_BLOCK = 1 << 24
TABLES = (
    "pai_job_table pai_task_table openb_pod_list cluster_job_log job_events task_events collection_events "
    "instance_events job_info_df"
).split()  # files of a directory that some reader reads


@dataclass(frozen=True, slots=True)
class Source:
    """What a reader reads: one file, or the files of a directory, decompressed, by name without `.gz` and the like."""

    path: Path
    files: dict[str, bytes]
    is_directory: bool = False

    @property
    def raw(self) -> bytes:
        """The only file, or the first one of a directory."""
        return next(iter(self.files.values()))

    @property
    def file(self) -> str:
        return str(self.path)

    def error(self, message: str, *, line: int | None = None, field: str | None = None, remedy: str = "") -> InputError:
        """An input error that names this file."""
        return InputError(message, file=self.file, line=line, field=field, remedy=remedy or None)


def trace_name(path: Path) -> str:
    """The file's name without the endings that say how it is stored."""
    name = _without_suffix(path.name)
    for ending in (".csv", ".swf", ".json", ".jsonl", ".txt", ".log"):
        name = name.removesuffix(ending)
    return name or path.name


def load(path: Path, progress: Progress | None = None) -> tuple[dict[str, bytes], str, bool]:
    """The stored bytes by file name, the sha256 over all of them, and whether the path is a directory."""
    if path.is_dir():
        found = {str(p.relative_to(path)): p for p in (*path.glob("*"), *path.glob("*/*")) if p.is_file()}
        # Published traces come with gigabytes of usage samples in the same directory.
        wanted = sorted(n for n in found if any(t in f"{path.name}/{n}" for t in TABLES) and not n.endswith(".header"))
        if not wanted:
            raise InputError("the directory holds no known table", file=str(path), remedy="known: " + ", ".join(TABLES))
        stored = {f"{path.name}/{n}": _read(found[n], progress) for n in wanted}
        digest = hashlib.sha256()
        for name, raw in stored.items():
            digest.update(f"{name}\0{len(raw)}\0".encode())
            digest.update(raw)
        return stored, digest.hexdigest(), True
    raw = _read(path, progress)
    return {path.name: raw}, hashlib.sha256(raw).hexdigest(), False


def bundled() -> Path:
    """The folder of the sample traces that come with the package."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_data" / "traces"
    return inside if inside.is_dir() else package.parent / "traces"


def _read(path: Path, progress: Progress | None) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if progress is None:
                return file.read()
            buffer = io.BytesIO()
            while block := file.read(_BLOCK):
                buffer.write(block)
                progress("reading", buffer.tell(), max(size, buffer.tell()))
            return buffer.getvalue()
    except FileNotFoundError:
        sample = bundled() / path.name
        remedy = f"the sample that comes with slurm-rl is {sample}" if sample.is_file() else "check the path"
        raise InputError("no such trace file", file=str(path), remedy=remedy) from None
    except OSError as error:
        raise InputError(f"not readable: {error.strerror or error}", file=str(path)) from None


def source_of(path: Path, stored: dict[str, bytes], is_directory: bool) -> Source:
    """Decompresses what was loaded."""
    return Source(path, {_without_suffix(n): _expand(raw, str(path)) for n, raw in stored.items()}, is_directory)


def _expand(raw: bytes, file: str) -> bytes:
    try:
        if raw.startswith(_GZIP):
            raw = gzip.decompress(raw)
        elif raw.startswith(_XZ):
            raw = lzma.decompress(raw)
        elif raw.startswith(_ZSTD):
            import zstandard

            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as stream:
                raw = stream.read()
    except ImportError:
        raise EnvironmentMissing(f"{file}: .zst needs the zstandard package: pip install 'slurm-rl[zstd]'") from None
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise InputError(f"damaged compressed file: {error}", file=file, remedy="fetch or write it again") from None
    except Exception as error:  # zstandard's own error class exists only where the package does
        if type(error).__name__ != "ZstdError":
            raise
        raise InputError(f"damaged compressed file: {error}", file=file, remedy="fetch or write it again") from None
    return raw.removeprefix(b"\xef\xbb\xbf")


def _without_suffix(name: str) -> str:
    for ending in _SUFFIXES:
        name = name.removesuffix(ending)
    return name


def write_file(path: str | Path, blocks: Iterable[bytes]) -> None:
    """Writes the blocks, compressed as the ending says, and renames into place; equal blocks give equal bytes."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed:
                    packed.writelines(blocks)
            elif path.suffix == ".xz":
                with lzma.LZMAFile(file, "wb", preset=6) as pressed:
                    pressed.writelines(blocks)
            elif path.suffix == ".zst":
                file.write(_zstd(b"".join(blocks), path))
            else:
                file.writelines(blocks)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", file=str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _zstd(raw: bytes, path: Path) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise EnvironmentMissing(f"{path}: .zst needs the zstandard package: pip install 'slurm-rl[zstd]'") from None
    packed: bytes = zstandard.ZstdCompressor(level=9).compress(raw)
    return packed
