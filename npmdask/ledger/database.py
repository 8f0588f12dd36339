"""Keep the ledger in a SQLite file or PostgreSQL. One connection a transaction, so that none outlives a fork.

Every transaction that writes holds the one row of ``npmdask_ledger`` (PostgreSQL) or the write lock of the file
(SQLite) from before its first read to its commit: what it decided on cannot have changed when it writes. When a
transaction returns, it is on disk. See docs/decisions/0020-ledger.md.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import npmdask.ledger.messages as text
from npmdask.core.storage.bundle import fsync_folder
from npmdask.core.storage.paths import is_url, require_not_withheld
from npmdask.errors import BadInputError, LostError, RefusedError, extra, require
from npmdask.ledger.journal import Book, make_tables, open_book

with extra("private"):
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

LOCK_SECONDS = 30  # a transaction takes milliseconds
SETUP_LOCK = 0x6E706D64  # any number that two makers of the tables agree on
NOT_US = re.compile("authentication failed|pg_hba|does not exist|permission denied")  # PostgreSQL, to a stranger


class Database:
    """Base of both kinds of database: runs transactions, and puts what goes wrong into sentences."""

    where: str
    engine: sa.Engine

    @property
    def place(self) -> str:
        """Place of the database, the same however it was written."""
        raise NotImplementedError

    def exists(self) -> bool:
        """Say whether there is anything to connect to."""
        return True

    def away(self, error: Exception) -> bool:
        """Say whether the error may go away by itself."""
        return False

    def make(self) -> None:
        """Make what ``exists`` misses."""

    def begin(self, connection: sa.Connection, *, write: bool, make: bool) -> None:
        """Start the transaction on a fresh connection."""
        raise NotImplementedError

    @contextmanager
    def writing(self, *, make: bool = False) -> Iterator[Book]:
        """The book, for reading and appending, with no other process writing; durable when the block has ended.

        Raises
        ------
        RefusedError
            The database cannot be reached, is locked, damaged or of another version: nothing is recorded.
        """
        with self._reporting_errors():
            if make and not self.exists():
                self.make()
            with self._transaction(write=True, make=make) as connection:
                yield open_book(connection, self.where, lock=True)

    @contextmanager
    def reading(self) -> Iterator[Book]:
        """The book at one instant."""
        with self._reporting_errors(), self._transaction(write=False, make=False) as connection:
            yield open_book(connection, self.where, lock=False)

    @contextmanager
    def _transaction(self, *, write: bool, make: bool) -> Iterator[sa.Connection]:
        if not self.exists():
            raise RefusedError(text.no_ledger(self.where))
        with self.engine.connect() as connection:
            self.begin(connection, write=write, make=make)
            if not sa.inspect(connection).has_table("npmdask_ledger"):
                if not make:
                    raise RefusedError(text.no_ledger(self.where))
                make_tables(connection)
            yield connection
            if write:
                connection.commit()

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            said = text.unusable(self.where, getattr(error, "orig", None) or error)
            raise (LostError if self.away(error) else RefusedError)(said) from error
        except OSError as error:
            raise RefusedError(text.unusable(self.where, error)) from error


class SqliteDatabase(Database):
    """A file of one machine, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)
        self.engine = sa.create_engine("sqlite://", creator=self._connect, poolclass=NullPool, hide_parameters=True)

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    def exists(self) -> bool:
        return self.path.exists()

    def make(self) -> None:
        """An empty file of mode 0600, there as a whole or not at all.

        It is closed before it gets its name: closing any descriptor of a file drops the locks that this process
        holds on it, those of SQLite too.
        """
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)  # 0600
        os.close(descriptor)
        try:
            os.link(aside, self.path)
        except FileExistsError:
            pass  # another process was faster
        finally:
            os.unlink(aside)
        fsync_folder(self.path.parent)

    def _connect(self) -> sqlite3.Connection:
        mode = os.stat(self.path).st_mode
        require(stat.S_ISREG(mode), f"{self.path} is not a file; name the file of the ledger")
        if mode & 0o077:
            raise RefusedError(text.readable_by_others(self.path))
        uri = f"file:{quote(str(self.path))}?mode=rw"  # never makes a file
        connection = sqlite3.connect(uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA fullfsync = ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def begin(self, connection: sa.Connection, *, write: bool, make: bool) -> None:
        if not write:
            connection.exec_driver_sql("BEGIN")
            return
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        end = time.monotonic() + LOCK_SECONDS
        while not _took_lock(connection, last=time.monotonic() > end):
            time.sleep(random.uniform(0.001, 0.01))
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(1000 * LOCK_SECONDS)}")


class PostgresDatabase(Database):
    """A server that several machines share."""

    def __init__(self, url: sa.URL) -> None:
        self.where = url.render_as_string(hide_password=True)
        with extra("postgres"):
            self.engine = sa.create_engine(
                url.set(drivername="postgresql+psycopg"),
                poolclass=NullPool,
                hide_parameters=True,
                connect_args={"connect_timeout": 10, "tcp_user_timeout": LOCK_SECONDS * 1000, "keepalives_idle": 10},
            )

    @property
    def place(self) -> str:
        """Without driver and user: another role sees the same tables."""
        url = self.engine.url
        query = url.query if not url.host else {}  # of a socket the folder is there
        return f"postgresql://{(url.host or '').lower()}:{url.port or 5432}/{url.database} {sorted(query.items())}"

    def away(self, error: Exception) -> bool:
        """No connection, or a lock that is held; not an answer about who we are."""
        lost = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
        return lost and not NOT_US.search(str(error))

    def begin(self, connection: sa.Connection, *, write: bool, make: bool) -> None:
        level = "READ COMMITTED" if write else "REPEATABLE READ"
        connection.execution_options(isolation_level=level)
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
        if make:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SETUP_LOCK})")
        if write:
            self._require_durable(connection)

    def _require_durable(self, connection: sa.Connection) -> None:
        """An answer that a power cut takes back is none."""
        if _setting(connection, "fsync") == "off" or _setting(connection, "full_page_writes") == "off":
            raise RefusedError(text.not_durable(self.where))
        if _setting(connection, "synchronous_commit") == "off":
            connection.exec_driver_sql("SET LOCAL synchronous_commit = 'on'")


def _took_lock(connection: sa.Connection, *, last: bool) -> bool:
    """SQLite's own waiting sleeps longer and longer, so that who comes late is served first: 20 s in a crowd of 8."""
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except sa.exc.OperationalError as error:
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF  # without the details
        if last or code != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def _setting(connection: sa.Connection, name: str) -> Any:
    return connection.exec_driver_sql(f"SHOW {name}").scalar_one()


def find_database(address: str | os.PathLike[str]) -> Database:
    """The database that a URL (``postgresql://...``, ``sqlite:///...``) or a path means. Nothing is opened.

    Raises
    ------
    BadInputError
        Neither, or a SQLite database in memory.
    """
    require_not_withheld(address)
    named = os.fspath(address)
    if not is_url(named):
        return SqliteDatabase(Path(named).expanduser().absolute())
    try:
        url = sa.make_url(named)
    except (sa.exc.ArgumentError, ValueError):
        raise BadInputError(text.BAD_ADDRESS) from None  # the text may hold a password
    backend = url.drivername.partition("+")[0]
    if backend in ("postgresql", "postgres"):
        return PostgresDatabase(url)
    if backend == "sqlite" and url.database and url.database != ":memory:":
        return SqliteDatabase(Path(url.database).expanduser().absolute())
    raise BadInputError(text.BAD_ADDRESS)
