"""The secret behind the noise of a private run: 32 bytes in a file of their own, as secret as the data.

The key is enough to subtract the noise. It is therefore never in a configuration, log, repr, checkpoint, task graph or
report: an ``Entropy`` shows nothing and refuses to be copied or pickled. Noise is a pseudo-random function of the key
and of what is public about a release, so a release that is done again after a crash is the same release, bit for bit.
There is no state that a fork could duplicate: processes that ask for different purposes get unrelated streams, and
those that ask for the same purpose get the same one.

ChaCha20 (RFC 8439) under HMAC-SHA-256(key, purpose), nonce 0. Every purpose has its own key: no (key, nonce) is ever
used for two purposes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from pathlib import Path
from typing import NoReturn

import numpy as np

from npmdask.errors import BadInputError, Later, RefusedError

ciphers = Later("cryptography.hazmat.primitives.ciphers", "private")
algorithms = Later("cryptography.hazmat.primitives.ciphers.algorithms", "private")
KEY_BYTES = 32
LONGEST_STREAM = 1 << 38  # ChaCha20 counts 2^32 blocks of 64 bytes; after them it would repeat
_LABEL = b"npmdask keystream 1\0"


class _Secret:
    """Base of the classes below, which refuse to show, copy or pickle themselves."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: secret>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise RefusedError(
            f"{type(self).__name__} holds a secret key, which is never copied or pickled: give the path of its file "
            "instead"
        )

    def __getstate__(self) -> NoReturn:
        self.__reduce_ex__(0)


class Keystream(_Secret):
    """Uniform bits for one purpose, in order. Belongs to the process that asked for it."""

    __slots__ = ("_encryptor", "_key", "_process", "_used")

    def __init__(self, key: bytes):
        self._key = key
        self._encryptor = ciphers.Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._used = 0
        self._process = os.getpid()

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes. RefusedError after 256 GiB, and in a process that was forked meanwhile."""
        if os.getpid() != self._process:
            raise RefusedError("a keystream was copied by a fork: ask the Entropy for one in the new process")
        if self._used + count > LONGEST_STREAM:
            raise RefusedError("one purpose may draw 256 GiB of random bits: split the release")
        self._used += count
        return self._encryptor.update(bytes(count))

    def words(self, count: int) -> np.ndarray:
        """The next ``count`` uint64 (little endian in the stream, on every machine)."""
        return np.frombuffer(self.read(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def aside(self, *purpose: str | int | bytes) -> Keystream:
        """Another stream, named by ``purpose``, that does not move this one."""
        return Keystream(hmac.digest(self._key, _LABEL + encode_purpose(*purpose), hashlib.sha256))


class Entropy(_Secret):
    """A secret key in its own file. Make one with :meth:`create` or :meth:`open`, never directly."""

    __slots__ = ("_bound_to", "_key", "path")

    def __init__(self, key: bytearray, path: Path, bound_to: str = ""):
        self._key = key
        self._bound_to = bound_to
        self.path = path

    @classmethod
    def create(cls, path: str | Path, *, bound_to: str = "") -> Entropy:
        """A new key in a new file (mode 0600, its folder 0700), on disk before this returns.

        ``bound_to`` (a fingerprint of the data, say) enters every purpose: opened with another one, the same file gives
        unrelated streams. RefusedError if the file exists: it may belong to a run that still needs it.
        """
        path = Path(path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_own_folder(path.parent)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except FileExistsError:
            raise RefusedError(f"{path} exists already: resume the run it belongs to, or choose another path") from None
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), 0o600)  # whatever the umask
            file.write(os.urandom(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(path.parent)
        return cls.open(path, bound_to=bound_to)

    @classmethod
    def open(cls, path: str | Path, *, bound_to: str = "") -> Entropy:
        """The key of a run that goes on. RefusedError if it is gone, short, destroyed or readable by others."""
        path = Path(path)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise RefusedError(
                f"the secret key {path} is missing: the releases that this run has begun stay charged; start a new run"
            ) from None
        except OSError as error:
            raise RefusedError(
                f"cannot read the secret key {path} ({error.strerror}): it must be your own file"
            ) from None
        try:
            _require_private(path, os.fstat(handle))
            _require_own_folder(path.parent)
            return cls(_require_complete_key(path, bytearray(os.read(handle, KEY_BYTES + 1))), path, bound_to)
        finally:
            os.close(handle)

    def keystream(self, *purpose: str | int | bytes) -> Keystream:
        """The stream for ``purpose``, from its beginning: the same for the same purpose, unrelated for another."""
        return Keystream(self._derive("keystream", *purpose))

    @property
    def commitment(self) -> str:
        """32 hexadecimal digits that tell keys (and what they are bound to) apart and say nothing else: public."""
        return self._derive("commitment").hex()[:32]

    def destroy(self) -> None:
        """Forget the key, and :func:`destroy_key` its file. The streams of this Entropy are refused from now on."""
        self._key[:] = bytes(KEY_BYTES)
        destroy_key(self.path)

    def _derive(self, *purpose: str | int | bytes) -> bytes:
        if not any(self._key):
            raise RefusedError(f"the secret key {self.path} was destroyed: start a new run")
        return hmac.digest(self._key, _LABEL + encode_purpose(self._bound_to, *purpose), hashlib.sha256)


def destroy_key(path: str | Path) -> None:
    """Overwrite the file of a key with zeros, flush, remove it, flush its folder; nothing if it is gone already.

    Zeros are recognised by :meth:`Entropy.open`: a kill between the two leaves a file that is refused, never another
    key. On flash disks and copy-on-write file systems the old block may survive until it is reused, and backups keep
    what they have: if that matters, keep the key in memory (tmpfs) or on an encrypted disk.
    """
    path = Path(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with os.fdopen(handle, "wb") as file:
        file.write(bytes(max(KEY_BYTES, os.fstat(handle).st_size)))
        file.flush()
        os.fsync(handle)
    path.unlink()
    _sync_folder(path.parent)


def encode_purpose(*purpose: str | int | bytes) -> bytes:
    """``purpose`` as bytes, no two alike: the number of parts, then of each its type, its length and itself."""
    parts = [len(purpose).to_bytes(8, "big")]
    for part in purpose:
        kind, raw = _tagged_bytes(part)
        parts += [kind, len(raw).to_bytes(8, "big"), raw]
    return b"".join(parts)


def _tagged_bytes(part: str | int | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, str):
        return b"s", part.encode()
    if isinstance(part, bytes):
        return b"b", part
    if isinstance(part, int) and not isinstance(part, bool):
        return b"i", str(part).encode()
    raise BadInputError(f"a purpose consists of str, int and bytes, not {type(part).__name__}")


def _require_complete_key(path: Path, key: bytearray) -> bytearray:
    if len(key) != KEY_BYTES:
        size = f"{len(key)}" if len(key) < KEY_BYTES else "more than 32"
        raise RefusedError(f"the secret key {path} has {size} bytes instead of 32 and is incomplete: start a new run")
    if not any(key):
        raise RefusedError(f"the secret key {path} was destroyed, because its run is over: start a new one")
    return key


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise RefusedError(f"the secret key {path} must be a plain file of your own")
    if status.st_mode & 0o077:
        raise RefusedError(
            f"the secret key {path} can be read by others (mode {stat.S_IMODE(status.st_mode):o}), and with it the "
            "noise can be subtracted: if no one has read it, `chmod 600` it"
        )


def _require_own_folder(folder: Path) -> None:
    if folder.stat().st_mode & 0o022:
        raise RefusedError(f"the folder {folder} of a secret key can be written by other users: `chmod 700` it")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
