"""System calls that do not wait, made without giving the interpreter away.

Python lets another thread run during every system call. While a tick works through a long queue, it takes a hundred
times as long as the call until the interpreter comes back; a submission would pay that ten times. So these are for
descriptors that do not block, and for short appends to a local file.
"""

from __future__ import annotations

import ctypes
import os

_C = ctypes.PyDLL(None, use_errno=True)
_NO_DELAY = os.O_NONBLOCK | os.O_CLOEXEC  # SOCK_NONBLOCK | SOCK_CLOEXEC: Linux has the same numbers
_RECEIVED = ctypes.create_string_buffer(1 << 17)  # shared: nobody else runs between filling and reading it

for _call in (_C.recv, _C.send, _C.write):
    _call.restype = ctypes.c_ssize_t
_C.recv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_C.send.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
_C.write.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]


def _checked(result: int) -> int:
    """Raises the OSError that Python's own calls raise, BlockingIOError among them."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def accept(listener: int) -> int:
    """The descriptor of the next connection, which does not block and is not inherited."""
    return _checked(_C.accept4(listener, None, None, _NO_DELAY))


def receive(descriptor: int, most: int, flags: int = 0) -> bytes:
    """What has come, up to 128 KB of it."""
    length = _checked(_C.recv(descriptor, _RECEIVED, min(most, len(_RECEIVED)), flags))
    return ctypes.string_at(_RECEIVED, length)


def send(descriptor: int, data: bytes, flags: int = 0) -> int:
    return _checked(_C.send(descriptor, data, len(data), flags))


def write(descriptor: int, data: bytes) -> int:
    return _checked(_C.write(descriptor, data, len(data)))


def lock(descriptor: int, operation: int) -> None:
    """flock; without LOCK_NB it may wait, and everybody with it."""
    _checked(_C.flock(descriptor, operation))


def close(descriptor: int) -> None:
    _checked(_C.close(descriptor))
