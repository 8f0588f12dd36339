"""The page cache of a folder's files: dropped without root, and looked at to see that it was."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
LIBC.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def files_of(*folders: Path) -> list[Path]:
    """Every file below the folders (or the file itself)."""
    return [
        f for folder in folders for f in ([folder] if folder.is_file() else sorted(folder.rglob("*"))) if f.is_file()
    ]


def drop(*folders: Path) -> None:
    """Forget the cached pages of every file: dirty pages cannot be dropped, so they are written first."""
    for path in files_of(*folders):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)


def warm(*folders: Path) -> None:
    """Read every file once."""
    buffer = bytearray(2**24)
    for path in files_of(*folders):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def cached_share(*folders: Path) -> float:
    """The share of the bytes that are in the page cache now (mincore)."""
    pages = [_cached_pages(path) for path in files_of(*folders) if path.stat().st_size]
    return sum(held for held, _ in pages) / max(1, sum(count for _, count in pages))


def _cached_pages(path: Path) -> tuple[int, int]:
    size = path.stat().st_size
    count = -(-size // PAGE)
    with open(path, "rb") as file:
        address = LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    flags = ctypes.create_string_buffer(count)
    try:
        if LIBC.mincore(address, size, flags):
            raise OSError(ctypes.get_errno(), "mincore", str(path))
    finally:
        LIBC.munmap(address, size)
    return sum(flag & 1 for flag in flags.raw), count
