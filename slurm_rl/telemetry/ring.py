"""A bounded file of checksummed records that outlives kill -9, a full disk and a clock that jumps."""

from __future__ import annotations

import errno
import os
import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_rl.errors import InputError

_MAGIC = b"slurmrl-ring-1\n\0"
_HEADER = struct.Struct("<16s16sII")  # magic, identity, slot size, slots
_HEAD_BYTES = 4096
_SLOT = struct.Struct("<IIQ")  # checksum of the rest, length of the payload, sequence number
_CHUNK = 1 << 20


class Ring:
    """Fixed slots in a file that has its full size from the start; record `n` lies in slot `n` modulo their number.

    Sequence numbers begin at 1 and never repeat in a file. A record that was cut short by a crash fails its checksum
    and is not there. Nothing raises for want of disk space: `problem` says so, and the record is lost.
    """

    def __init__(self, path: Path, payload: int, slots: int) -> None:
        self.path, self.payload, self.slots = path, payload, slots
        self._size = _SLOT.size + payload
        self._file = -1
        self.identity = ""  # tells one file from another that replaced it
        self.last = 0  # the newest record's number; 0: none
        self.lost = 0
        self.problem = ""
        self.open()

    def open(self) -> None:
        """Opens the file or makes it; one of another shape or a damaged header is replaced."""
        if self._file >= 0:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            if not self._matches():
                self._make()
        except OSError as error:
            self._fail(error)
            return
        self.problem = ""
        self.last = max((number for number, _ in self._scan()), default=0)

    def append(self, payloads: Sequence[bytes]) -> bool:
        """Adds records with one write (two where the file's end lies between); False if they could not be kept."""
        if self._file < 0:
            self.lost += len(payloads)
            return False
        if any(len(p) > self.payload for p in payloads):
            raise InputError(f"{self.path}: a record holds at most {self.payload} bytes")
        kept = payloads[-self.slots :]
        first = self.last + 1 + len(payloads) - len(kept)
        blocks = [self._block(first + i, p) for i, p in enumerate(kept)]
        until_end = self.slots - first % self.slots
        try:
            self._write(first % self.slots, blocks[:until_end])
            self._write(0, blocks[until_end:])
        except OSError as error:
            self.lost += len(payloads)
            self._fail(error)
            return False
        self.last += len(payloads)
        self.problem = ""
        return True

    def after(self, number: int) -> Iterator[tuple[int, bytes]]:
        """The records with higher numbers that are still there, oldest first."""
        if self._file < 0:
            return
        first = max(number + 1, self.last - self.slots + 1, 1)
        at = first
        while at <= self.last:
            count = min(self.slots - at % self.slots, self.last - at + 1, max(1, _CHUNK // self._size))
            for found, payload in self._read(at % self.slots, count):
                if first <= found <= self.last:
                    yield found, payload
            at += count

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _block(self, number: int, payload: bytes) -> bytes:
        body = struct.pack("<IQ", len(payload), number) + payload
        return struct.pack("<I", zlib.crc32(body)) + body

    def _write(self, slot: int, blocks: Sequence[bytes]) -> None:
        if not blocks:
            return
        data = b"".join([b.ljust(self._size, b"\0") for b in blocks[:-1]]) + blocks[-1]
        if os.pwrite(self._file, data, _HEAD_BYTES + slot * self._size) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _scan(self) -> Iterator[tuple[int, bytes]]:
        step = max(1, _CHUNK // self._size)
        for slot in range(0, self.slots, step):
            yield from self._read(slot, min(step, self.slots - slot))

    def _read(self, slot: int, count: int) -> Iterator[tuple[int, bytes]]:
        data = os.pread(self._file, count * self._size, _HEAD_BYTES + slot * self._size)
        for i in range(len(data) // self._size):
            begin = i * self._size
            checksum, length, number = _SLOT.unpack_from(data, begin)
            if not number or number % self.slots != slot + i or length > self.payload:
                continue
            end = begin + _SLOT.size + length
            if zlib.crc32(data[begin + 4 : end]) == checksum:
                yield number, data[begin + _SLOT.size : end]

    def _matches(self) -> bool:
        header = os.pread(self._file, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return False
        magic, identity, size, slots = _HEADER.unpack(header)
        self.identity = identity.hex()
        return bool(magic == _MAGIC and size == self._size and slots == self.slots)

    def _make(self) -> None:
        """Takes all the space there will ever be; leaves no file behind that has less."""
        whole = _HEAD_BYTES + self.slots * self._size
        try:
            os.ftruncate(self._file, 0)
            os.posix_fallocate(self._file, 0, whole)
            identity = secrets.token_bytes(16)
            os.pwrite(self._file, _HEADER.pack(_MAGIC, identity, self._size, self.slots), 0)
            os.fsync(self._file)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        self.identity = identity.hex()

    def _fail(self, error: OSError) -> None:
        self.problem = f"{self.path}: {error.strerror or error}"
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self.identity:
            self.close()
