"""Grey pictures as PNG, for heat maps: thousands of cells would be megabytes as rectangles."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from slurm_rl.kernel.arrays import Array


def grey_png(pixels: Array) -> bytes:
    """A PNG of uint8 pixels [rows, columns], 0 black and 255 white."""
    rows, columns = pixels.shape
    lines = np.zeros((rows, columns + 1), dtype=np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = pixels
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def data_uri(png: bytes) -> str:
    """The picture itself as an address."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
