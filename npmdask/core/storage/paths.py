"""Names and places that come from outside: what may be one; and files that are never reached through a link.

A link in a folder that others write to would let them choose which file is overwritten, which
folder is made private, which steps are removed. So a store that is written is no link, and nothing in it is that is
written in place; folders above it may be links, and data may be *read* through them (docs/decisions/0034-security.md).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

from npmdask.core import features
from npmdask.errors import BadInputError, CommitError, RefusedError, require

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}"  # of a run
LONGEST = 200  # bytes of the name of a store: file systems take 255, and what lies beside it has longer names
LONGEST_NAME = 100  # characters of the name of data, as a title says it
UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and bytes that are no text

NEW_STORE = "a new store of data"
# As SQLAlchemy reads a URL, and what libpq takes as parameters
PASSWORD = re.compile(r"[^:]*://[^:/]*:[^@]+@|[^:]*://.*[?&](ssl)?password=", re.DOTALL)
JSON_BYTES = 2**28  # of one file of a store: the facts of a million chunks take a tenth of it
WHOLE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # of an array that is read into memory
# What moves the cursor of a terminal or renames its window; and what JSON writes such a character as.
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MAY_NOT_PRINT = re.compile(rb"\\[bfru]|\x7f|\xc2[\x80-\x9f]")
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # one slash: what a Path leaves of a URL; C:/ is none


def is_url(place: object) -> bool:
    """Say whether a place is a URL of any kind, also one that lost a slash on its way through a ``Path``."""
    return isinstance(place, str | os.PathLike) and URL.match(os.fspath(place)) is not None


def local_path(place: str | Path, what: str, schemes: Sequence[str] = ()) -> Path:
    """The absolute path of ``place``, which is a path or a URL that begins with ``file:///``.

    Parameters
    ----------
    what : what is there, for the sentence of the error.
    schemes : of URLs that are good for it, too, and that the caller has taken out before.

    Raises
    ------
    BadInputError
        A URL of another kind, or of none.
    """
    text = os.fspath(place)
    found = URL.match(text)
    if found is None:
        require(bool(text.strip()), f"{what} has an empty name (a variable of the shell that is not set?): give a path")
        return Path(text).absolute()
    scheme = found[1].lower()
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc or not parts.path.strip("/"):
            raise BadInputError(f"{text} names nothing on this machine: write file:///absolute/path")
        require_path(unquote(parts.path))
        return Path(unquote(parts.path))
    if scheme in schemes:
        raise BadInputError(
            f"{text} is a URL that has lost a slash, probably in a Path: give it as text, {scheme}://..."
        )
    others = f", or a URL that begins with {', '.join(f'{scheme}://' for scheme in schemes)}" if schemes else ""
    raise BadInputError(f"{text} is a URL, and {what} must be on this machine: give a path (or file:///PATH){others}")


CACHE = "NPMDASK_CACHE"
NOTE = "carried.json"  # beside a local copy of a run whose store is a URL


def cache_folder() -> Path:
    """Return where copies lie that can be made again: ``$NPMDASK_CACHE``, or ``~/.cache/npmdask``."""
    return Path(os.environ.get(CACHE) or Path.home() / ".cache" / "npmdask").absolute()


def require_name(name: str, what: str) -> str:
    """The name, if it can be that of a folder and of nothing else. Raises BadInputError."""
    if not re.fullmatch(NAME, name):
        shown = f"{name[:40]}..." if len(name) > 50 else name
        raise BadInputError(
            f"{what} {shown!r}: use letters, digits, dots, dashes and underscores, at most 200, the first a letter or "
            "a digit; it names a folder"
        )
    return name


def require_path(path: str | Path) -> None:
    """Raise BadInputError for what is no path, or one that no file system takes or that could not be shown as it is."""
    if not isinstance(path, str | os.PathLike):
        raise BadInputError(f"{path!r} is not a path: name the store by a path or a URL, as text or as a Path")
    text = str(path)
    require(
        bool(text.strip()),
        "the name of a store is empty (a variable of the shell that is not set?): give a path or a URL",
    )
    if UNSEEN.search(text):
        raise BadInputError(f"{text!r} contains control characters, or bytes that are not text; choose another name")
    name = os.path.basename(text)
    if len(name.encode()) > LONGEST:
        raise BadInputError(f"the name {name[:40]}... has more than {LONGEST} bytes; choose a shorter one")


def require_below(path: str) -> str:
    """The path of a file, as another program wrote it down, if it is one below the folder that it is of.

    Raises
    ------
    ValueError
        It is absolute, climbs up, is not written in its shortest form, or has characters that no file of ours has.
    """
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or path.startswith("/") or str(PurePosixPath(path)) != path or UNSEEN.search(path):
        raise ValueError(f"it names {path!r}, which is not a file of a run")
    return path


def require_no_link(folder: Path, names: Iterable[str] | None = None) -> None:
    """Raise BadInputError if ``folder`` is a symbolic link; or, with ``names``, if one of those in it is."""
    for path in [folder] if names is None else (folder / name for name in names):
        if path.is_symlink():
            remedy = f"name {os.path.realpath(path)} itself" if names is None else "take it away, or use another store"
            raise BadInputError(f"{path} is a symbolic link, and npmdask does not write through links: {remedy}")


def open_plain(path: Path | str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of ``path`` itself, a plain file: anything else is refused, at once.

    Raises
    ------
    BadInputError
        It is a symbolic link, a FIFO, a device or a folder.
    OSError
        As ``os.open``.
    """
    try:
        opened = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)  # a FIFO opens without its other end
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return opened
        os.close(opened)
    except OSError as error:
        if error.errno == errno.ELOOP:
            require_no_link(Path(path).parent, [Path(path).name])
        if error.errno not in (errno.ENXIO, errno.EISDIR):
            raise
    raise BadInputError(f"{path} is a FIFO, a device or a folder; files of a store must be plain files")


def read_plain(path: Path | str, most: int = WHOLE_BYTES, *, end: bool = False) -> bytes:
    """Read a file of a store, which another person may have made: a plain one, of at most ``most`` bytes.

    ``end``: of a larger one its last bytes, which is an error otherwise.

    Raises
    ------
    BadInputError
        No plain file, or a larger one.
    OSError
        As ``os.open``.
    """
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most and not end:
            raise BadInputError(f"{path} has {size} bytes; npmdask writes at most {most} there: it is damaged")
        file.seek(max(0, size - most))
        return file.read(min(size, most))


class Facts(dict[str, Any]):
    """A JSON object of a store. What should be in it and is not there is a damaged store, and no ``KeyError``."""

    withheld: dict[str, Any] | None = None  # of resources: what the store asks for and this user did not give

    def __missing__(self, name: str) -> Any:
        raise BadInputError(
            f"the store is damaged: {name!r} is missing in a file that describes it; start again in a new store"
        )


def read_facts(path: Path, most: int = JSON_BYTES) -> Any:
    """Read the JSON in a file of a store; its objects are :class:`Facts`, its text can be printed.

    Raises
    ------
    BadInputError
        As :func:`read_plain`.
    OSError, ValueError
        It cannot be read, or is not JSON.
    """
    return facts_in(read_plain(path, most))


def facts_in(data: bytes) -> Any:
    """Parse JSON that another person may have written; ValueError where it is none."""
    try:
        found = json.loads(data, object_hook=Facts)
        return _printable(found) if MAY_NOT_PRINT.search(data) else found
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _printable(found: Any) -> Any:
    """Write what a terminal would obey as it is written in Python, in every text of parsed JSON."""
    if isinstance(found, str):
        return UNPRINTABLE.sub(lambda at: f"\\x{ord(at[0]):02x}", found)
    if isinstance(found, list):
        return [_printable(one) for one in found]
    return Facts({_printable(k): _printable(v) for k, v in found.items()}) if isinstance(found, dict) else found


class Withheld(str):
    """A URL in the parameters of a run that its store alone asks for: it is shown and compared, and not opened.

    Who writes to a store must not choose what another person's machine connects to, and with which credentials
    (docs/explanation/security.md). ``store``: where the run lies.
    """

    store: str

    def __new__(cls, url: str, store: str = "") -> Withheld:  # a copy has its store from its state
        """Mark ``url``."""
        made = super().__new__(cls, url)
        made.store = store
        return made

    def __str__(self) -> str:
        """Stay what it is where a text is made of it."""
        return self


def require_not_withheld(place: object) -> None:
    """Raise BadInputError for a URL that only a store names, before it is opened."""
    if isinstance(place, Withheld):
        raise BadInputError(
            f"the run in {place.store} names {place}, and a store alone does not decide what is opened over the "
            f"network: if you trust it, say so once with `npmdask resume {quote(place.store)} --allow {quote(place)}`"
        )


def require_no_credentials(url: str) -> None:
    """Raise BadInputError for a URL with a user, a password or a signature in it, as addresses are kept and shown; and
    for one that only a store asks for.
    """
    require_not_withheld(url)
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    container = parts.scheme == "abfs" and ":" not in user  # abfs://container@account.dfs.core.windows.net/path
    if (at and not container) or parts.query or parts.fragment:
        raise BadInputError(
            f"the address {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} contains credentials or "
            "other parameters, but addresses are kept in files and logs: remove them and set them in the "
            "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


def place_of_store(store: str | Path, folder: Path | None = None) -> str:
    """Return what a store is known by: its URL, or its absolute path (relative ones are taken from ``folder``).

    Raises
    ------
    BadInputError
        A URL of another kind, without a name, or with credentials in it; a name that cannot be one.
    """
    require_not_withheld(store)
    require_path(store)
    if not is_url(store):
        return str((folder or Path.cwd()) / store)
    url, schemes = str(store).rstrip("/"), features.keys("stores")
    parts = urlsplit(url)
    require_no_credentials(url)
    if parts.scheme not in schemes or "://" not in url:
        return str(local_path(store, "the store of a run", schemes))
    if not parts.netloc or {"", ".", ".."} & set(unquote(parts.path).removeprefix("/").split("/")):
        raise BadInputError(f"{url} does not name a place in a bucket: write {parts.scheme}://BUCKET/NAME")
    require_path(unquote(parts.path))
    return url


def url_of_copy(folder: Path) -> str | None:
    """Return the URL of the run whose local copy ``folder`` is; None for every other folder."""
    mine = folder.parent.parent == cache_folder() / "runs"  # a store that was sent may have a note of its own
    note = read_note(folder.parent) if mine else None
    return str(note["url"]) if note and str(note["url"]).rpartition("/")[2] == folder.name else None


def read_note(home: Path) -> dict[str, Any] | None:
    """Return the note of a local copy, or None."""
    try:
        note: dict[str, Any] = read_facts(home / NOTE)
        return note if {"url", "commit", "token", "files"} <= note.keys() else None
    except (OSError, ValueError, AttributeError, BadInputError):
        return None


def require_no_password(ledger: str | None) -> None:
    """
    Refuse the address of a ledger, in a configuration or on a command line, that holds a password.

    Raises
    ------
    BadInputError
        It does.
    """
    if ledger is not None and PASSWORD.match(ledger):
        raise BadInputError(
            "the URL of the ledger contains a password, but configurations and command lines are copied, logged and "
            "kept by schedulers: leave `ledger` out and put the URL into the environment variable NPMDASK_LEDGER, or "
            "the password into ~/.pgpass"
        )


def private(path: str, flags: int) -> int:
    """For ``open(..., opener=private)``: readable by its owner only, whatever the umask, and whatever it was before."""
    descriptor = open_plain(path, flags, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def in_order(name: str) -> tuple[tuple[Any, ...], str]:
    """The key that sorts the names of files in a folder: by the numbers in them, as Dask counts the parts it writes.

    Examples
    --------
    >>> sorted(["part.10.csv", "part.2.csv", "part.02.csv", "part.", "part"], key=in_order)
    ['part', 'part.', 'part.02.csv', 'part.2.csv', 'part.10.csv']
    """
    return tuple(int(part) if at % 2 else part for at, part in enumerate(re.split("([0-9]+)", name))), name


ZARR = ("zarr.json", ".zgroup", ".zarray")  # files of a folder that is an array or a group of Zarr


def is_zarr(folder: Path) -> bool:
    """Say whether a folder is an array or a group of Zarr, as far as the names of its files say."""
    return any((folder / name).exists() for name in ZARR)


def inside_data(store: object, data: object) -> BadInputError:
    """The error of a store that would lie in data: what is read would be changed by what is written."""
    return BadInputError(f"{store} lies in {data}, which holds data: choose a store outside of it")


def require_outside_data(folder: Path) -> None:
    """Raise BadInputError for a new folder below an array or a group of Zarr, also where links lead there."""
    if above := next(filter(is_zarr, Path(os.path.realpath(folder)).parents), None):
        raise inside_data(folder, above)


# One process at a time writes a store: the lock beside it.


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold ``DEST.partial.lock`` (flock: the kernel lets go of it however this process dies)."""
    require_path(target)
    path = target.with_name(target.name + ".partial.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, target)
    except OSError as error:
        raise CommitError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, target: Path) -> int:
    while True:
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, 0o644)  # close-on-exec, as Python opens everything
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise RefusedError(
                f"another process (pid {holder}) is writing {target}; wait for it or end it first"
            ) from None
        # The holder before may have removed the file between open and flock: then this lock guards nothing.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)


@contextmanager
def unless_locked(*files: Path) -> Iterator[bool]:
    """Yield whether no process has a lock (flock) on one of these files; then this one has them all, inside.

    Nothing is made, no link is followed, and of a pipe no writer is waited for.
    """
    with ExitStack() as held:
        free = True
        for file in files:
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except FileNotFoundError:
                continue
            except OSError:
                free = False
        yield free


def data_name(path: str) -> str:
    """Return the last part of a path or URL.

    Examples
    --------
    >>> data_name("s3://key:secret@bucket/nightly/samples.zarr?version=3")
    'samples.zarr'
    >>> data_name("-")
    'standard input'
    """
    if path == "-":
        return "standard input"
    plain = urlsplit(path).path if "://" in path else path
    return PurePosixPath(plain.rstrip("/")).name[:LONGEST_NAME] or "data"
