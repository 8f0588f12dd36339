"""Fetch from an object store what a pass reads next, while it computes: many requests at once, within a bound of bytes.

There is one :class:`Prefetcher` for each process, shared by its threads. It is given the order in which objects will be
read and asks for as many of them as its bound allows, on zarr's event loop. A thread takes what it reads by name, so
the order in which objects arrive decides nothing. An object that is taken and was not asked for is fetched at once,
beside the bound: that memory is part of the task.

With a bound of 0, which is how every process begins, nothing is fetched ahead (docs/decisions/0053).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from npmdask.core.storage.chunk_access import HEADERS, MOST_PACKED, PIECE, count
from npmdask.remote.snapshots import snapshot_of

LARGE = 2 * PIECE  # what may be larger is fetched in pieces, several at once
PART = 2**19  # bytes that are copied at once
SILENCE = 15.0  # seconds without so many bytes: the request is given up and made again
TRIES = 4  # of what broke off on its way; what a server refuses was tried again by obstore, or is an answer
BACKOFF = 0.2  # seconds before the second try, doubled for each one after it
# Whatever is asked for, the server sends all; or the object is shorter than that, perhaps empty: what it has will tell.
NO_RANGE = re.compile("non-partial response|range was invalid|InvalidRange|Range Not Satisfiable")
KEPT = 64  # indices of shards that stay after they were taken: of one shard, several threads may read


class NoAnswerError(Exception):
    """The store stopped sending, or sent less than it had announced, every time that it was asked."""


class _BrokenOffError(Exception):
    """A request that may succeed when it is made again."""


class _NoRoomError(Exception):
    """An object is larger than was expected, and has to wait for its turn again."""


class Came(NamedTuple):
    """Bytes that came, how many the object has, and which version of it (None if its store knows none)."""

    data: np.ndarray
    size: int
    tag: str | None


class Piece(NamedTuple):
    """An object of an array's store by its name below the array, or some bytes of it (first, one past the last).

    ``expected``: bytes that it will have, as far as is known: of a chunk its decoded size. A ``span`` of (-n, 0) are
    the last n bytes. ``tag``: the version that is wanted. ``then``: what else to fetch once it has come, which is asked
    for on the event loop: it must not wait. ``expected`` is then what that may take.
    """

    name: str
    expected: int
    span: tuple[int, int] | None = None
    tag: str | None = None
    then: Callable[[Came], list[Piece]] | None = None


def fetched(array: Any, pieces: Iterable[Piece]) -> Iterator[np.ndarray]:
    """Yield the bytes of ``pieces`` in their order, later ones being fetched meanwhile.

    Parameters
    ----------
    array
        What they belong to, in a store that is no local folder.
    pieces
        Objects, or ranges of bytes of them.

    Yields
    ------
    ndarray
        Of uint8, shape (bytes,).

    Raises
    ------
    FileNotFoundError
        One is not there (its name).
    ValueError
        One is far larger than what it decodes to.
    NoAnswerError
        One broke off each time.
    Exception
        Whatever the store answers.
    """
    listed = list(pieces)
    with following(listed, lambda piece: prefetch_piece(array, piece)):
        for piece in listed:
            yield take(array, piece)


def fetches_ahead(array: Any) -> bool:
    """Say whether reads of ``array`` go over a network, so that asking for them early is worth memory."""
    store = array.store_path.store
    far = zarr.storage.ObjectStore | zarr.storage.FsspecStore
    return isinstance(store, far) or snapshot_of(store) is not None


def prefetch_piece(array: Any, piece: Piece) -> None:
    """Have a piece of ``array`` fetched when its turn comes; returns at once."""
    mine = _prefetcher()
    if mine.bound and fetches_ahead(array):
        mine.ask(_Object.of(array, piece))


def take(array: Any, piece: Piece) -> np.ndarray:
    """The bytes of a piece of ``array``, which may have been asked for. Raises what :func:`fetched` does."""
    return take_all(array, [piece])[0].data


def take_all(array: Any, pieces: list[Piece]) -> list[Came]:
    """Take several pieces at once as :func:`take` does, and return their versions with them."""
    return _prefetcher().take([_Object.of(array, piece) for piece in pieces], counted=fetches_ahead(array))


@contextmanager
def following(units: Iterable[Any], ask_for: Callable[[Any], None]) -> Iterator[None]:
    """For as long as the context lasts, call ``ask_for`` with one of ``units`` after the other as there is room.

    What was asked for and not taken is given up at the end. ``ask_for`` is called on the event loop: it must not wait.
    """
    mine = _prefetcher()
    if not mine.bound:
        yield
        return
    feed = _Feed(iter(units), ask_for)
    sync(mine.begin(feed))
    try:
        yield
    finally:
        sync(mine.end(feed))


def grant(name: str, nbytes: int) -> None:
    """Let ``name`` have so many bytes in flight in this process, beside what others have; 0 takes it back."""
    _prefetcher().grant(name, nbytes)


@dataclass(eq=False)
class _Object:
    """An object, or a part of one, that is asked for."""

    store: Any
    path: str
    name: str
    family: tuple[int, str]  # of the array: its objects are of about one size
    expected: int
    span: tuple[int, int] | None
    tag: str | None = None  # of the version that is wanted
    then: Callable[[Came], list[Piece]] | None = None
    array: Any = None  # that ``then`` is about
    due: list[tuple[Callable[[Came], list[Piece]], Any]] = field(default_factory=list)  # and for whom, once it has come
    size: int = 0  # of the whole object
    version: str | None = None  # that came
    owner: Any = None  # the feed that asked for it
    counted: int = 0  # bytes of the bound that it takes
    awaited: bool = False  # by a thread
    task: Any = None
    requests: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, array: Any, piece: Piece) -> _Object:
        store = array.store_path.store
        path = f"{array.path}/{piece.name}".lstrip("/")
        family = (id(store), array.path)
        return cls(store, path, piece.name, family, piece.expected, piece.span, piece.tag, piece.then, array)

    @property
    def key(self) -> tuple[int, str, tuple[int, int] | None]:
        return (id(self.store), self.path, self.span)

    @property
    def known(self) -> int | None:
        """Bytes that it takes, where that needs no experience with other objects."""
        if self.then is not None:
            return self.expected
        return None if self.span is None else self.span[1] - self.span[0]


@dataclass(eq=False)
class _Feed:
    units: Iterator[Any]
    ask_for: Callable[[Any], None]


@dataclass(eq=False)
class Prefetcher:
    """All that is in flight in this process. Everything but ``bound`` is touched on the event loop only.

    ``held``: bytes that count against the bound, from the start of a request until its object is taken; ``peak``: the
    most of them so far.
    """

    bound: int = 0
    held: int = 0
    peak: int = 0
    pid: int = field(default_factory=os.getpid)
    _grants: dict[str, int] = field(default_factory=dict)
    _objects: dict[Any, _Object] = field(default_factory=dict)  # asked for and not taken
    _queue: deque[_Object] = field(default_factory=deque)
    _open: list[_Feed] = field(default_factory=list)
    _feeds: deque[_Feed] = field(default_factory=deque)  # those of them that have more to ask for
    _feeding: _Feed | None = None
    _early: set[Any] = field(default_factory=set)  # taken before their feed came to them
    _kept: deque[_Object] = field(default_factory=deque)  # taken, and what follows from them may be asked for again
    _sizes: dict[tuple[int, str], int] = field(default_factory=dict)  # the largest object of an array so far

    # From threads

    def grant(self, name: str, nbytes: int) -> None:
        if nbytes or name in self._grants:
            sync(self._grant(name, nbytes))

    def ask(self, wanted: _Object) -> None:
        if self._feeding is not None and threading.get_ident() == self._thread:
            self._add(wanted)
        else:
            self._loop.call_soon_threadsafe(self._enqueue, wanted)

    def take(self, wanted: list[_Object], *, counted: bool) -> list[Came]:
        found: list[tuple[np.ndarray, _Object]] = sync(self._take_all(wanted))
        if counted:  # of a store in memory, nothing was sent for
            for _, each in found:
                count(each.requests, each.nbytes)
        return [Came(data, each.size, each.version) for data, each in found]

    # On the event loop

    async def _grant(self, name: str, nbytes: int) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._grants.pop(name, None)
        if nbytes:
            self._grants[name] = nbytes
        self.bound = sum(self._grants.values())
        if not self.bound:
            self._discard(list(self._objects.values()))
            self._sizes.clear()
        self._pump()

    async def begin(self, feed: _Feed) -> None:
        self._open.append(feed)
        self._feeds.append(feed)
        self._pump()

    async def end(self, feed: _Feed) -> None:
        self._open.remove(feed)
        with suppress(ValueError):
            self._feeds.remove(feed)
        self._discard([each for each in self._objects.values() if each.owner is feed or each.owner is None])
        if not self._open:
            self._early.clear()
            self._kept.clear()
        self._pump()

    def _discard(self, objects: list[_Object]) -> None:
        for each in objects:
            del self._objects[each.key]
            self._count(each, 0)
            if each.task is not None and not each.awaited:
                each.task.cancel()

    def _enqueue(self, wanted: _Object) -> None:
        self._add(wanted)
        self._pump()

    def _add(self, wanted: _Object, owner: Any = None) -> None:
        if (self._feeding or owner) is not None and wanted.key in self._early:
            self._early.discard(wanted.key)
            return
        known = self._objects.setdefault(wanted.key, wanted)
        known.owner = self._feeding or known.owner or owner
        if wanted.then is not None:
            known.due.append((wanted.then, self._feeding or owner))
        if known is not wanted:
            if known.task is not None and known.task.done():
                self._follow(known)
            elif wanted.then is not None and self._feeding is not None and not known.awaited:
                # Room for what follows. Else the feed would go on as if it took none, and what it asks for last would
                # fill the bound first, if its index is the first to come.
                self._count(known, known.counted + max(0, min(wanted.expected, self.bound - self.held)))
            return
        self._queue.append(wanted)

    def _pump(self) -> None:
        """Start what there is room for, in the order of the asking."""
        while self._queue or self._feed_one():
            if not self._queue:
                continue
            first = self._queue[0]
            if self._objects.get(first.key) is first and first.task is None:
                need = self._sizes.get(first.family, first.expected) if first.known is None else first.known
                if self.held + need > self.bound:
                    return
                self._count(first, need)
                self._start(first)
            self._queue.popleft()

    def _feed_one(self) -> bool:
        """Ask for the next unit of the feed whose turn it is; False if no feed has any or there is no room anyway."""
        if not self._feeds or self.held >= self.bound:
            return False
        feed = self._feeds[0]
        self._feeds.rotate(-1)
        self._feeding = feed
        try:
            feed.ask_for(next(feed.units))
        except Exception:  # its end; or what its reader will raise when it comes to it
            self._feeds.remove(feed)
        finally:
            self._feeding = None
        return True

    def _start(self, wanted: _Object) -> None:
        wanted.task = asyncio.get_running_loop().create_task(_fetch_object(wanted, self.admit))
        wanted.task.add_done_callback(partial(self._on_fetched, wanted))

    def _on_fetched(self, wanted: _Object, task: Any) -> None:
        if task.cancelled() or task.exception() or wanted.then is None:  # an error is for the thread that takes it
            return
        if not wanted.awaited and self._objects.get(wanted.key) is wanted:
            self._count(wanted, len(task.result()))
        self._follow(wanted)
        self._pump()

    def _follow(self, wanted: _Object) -> None:
        """Ask for what follows from an object that has come, before all that was asked for after it."""
        if wanted.task.cancelled() or wanted.task.exception() or not (self.bound and self._open):
            return
        due, wanted.due = wanted.due, []
        waiting, self._queue = self._queue, deque()
        came = Came(wanted.task.result(), wanted.size, wanted.version)
        for then, owner in due:
            for piece in then(came):
                self._add(_Object.of(wanted.array, piece), owner)
        self._queue += waiting

    def _count(self, wanted: _Object, nbytes: int) -> None:
        self.held += nbytes - wanted.counted
        wanted.counted = nbytes
        self.peak = max(self.peak, self.held)

    def admit(self, wanted: _Object, size: int) -> None:
        """Count the size that an object turns out to have, before it is read. Raises _NoRoomError if there is none,
        unless a thread waits for it: a request that is left open until there is room would be broken off.
        """
        if wanted.known is not None and (wanted.then is None or size <= wanted.known):  # else all came, not a part
            return
        self._sizes[wanted.family] = max(size, self._sizes.get(wanted.family, 0))
        if wanted.awaited:
            return
        if self.held + size - wanted.counted > self.bound:
            wanted.task, wanted.expected = None, size
            self._count(wanted, 0)
            self._queue.appendleft(wanted)
            raise _NoRoomError
        less = size < wanted.counted
        self._count(wanted, size)
        if less:
            self._pump()

    async def _take_all(self, wanted: list[_Object]) -> list[tuple[np.ndarray, _Object]]:
        if len(wanted) == 1:
            return [await self._take(wanted[0])]
        return await _gather_or_cancel([self._take(each) for each in wanted])

    async def _take(self, wanted: _Object) -> tuple[np.ndarray, _Object]:
        found = self._objects.pop(wanted.key, None)
        if self._open and wanted.then is not None:
            self._keep(found or wanted)
        elif self._open and (found is None or found.owner is None):
            self._early.add(wanted.key)
        wanted = found or wanted
        wanted.awaited = True
        self._count(wanted, 0)
        if wanted.task is None:
            self._start(wanted)
        self._pump()
        data = None
        try:
            data = await wanted.task
        finally:
            if data is None or len(data) == wanted.size:  # it did not come; or all of a shard, as no parts are sent
                self._drop(wanted)
        return data, wanted

    def _keep(self, wanted: _Object) -> None:
        """Have an object stay that is taken, so that what follows from it can be asked for a part at a time."""
        self._objects[wanted.key] = wanted
        if wanted not in self._kept:
            self._kept.append(wanted)
        if len(self._kept) > KEPT:
            self._drop(self._kept.popleft())

    def _drop(self, kept: _Object) -> None:
        if self._objects.get(kept.key) is kept:
            del self._objects[kept.key]
            self._count(kept, 0)


_MINE = Prefetcher()


def _prefetcher() -> Prefetcher:
    """That of this process: a child that was forked has none of its parent's requests."""
    global _MINE
    if _MINE.pid != os.getpid():
        _MINE = Prefetcher()
    return _MINE


# One object. What broke off on its way is asked for again, and nothing else has to wait for that.


Admit = Callable[[_Object, int], None]
Room = Callable[[Any], np.ndarray]  # for the bytes of an answer


async def _fetch_object(wanted: _Object, admit: Admit) -> np.ndarray:
    if not isinstance(wanted.store, zarr.storage.ObjectStore):
        return await _fetch_by_store(wanted)
    from npmdask.remote.on_the_way import as_tagged

    ranged = wanted.span is not None or wanted.expected > LARGE
    span, seen = wanted.span, set[str]()
    for number in range(TRIES):
        await _pause(number)
        try:
            data = await _fetch_pieces(wanted, admit, span or (0, None) if ranged else None)
            if not await as_tagged(wanted, data, seen):
                continue
            return data if ranged or wanted.span is None or wanted.then is not None else data[slice(*wanted.span)]
        except Exception as error:
            if ranged and NO_RANGE.search(str(error)):
                ranged = False
            elif span is not None and span[0] < 0 and type(error).__name__ == "NotSupportedError":  # as of Azure
                span = await _last_bytes(wanted, -span[0])
            elif type(error).__name__ != "PreconditionError":  # of obstore: it was replaced between two pieces
                raise
    why = "it came damaged, other than its ETag says" if seen else "it was replaced while it was read"
    raise NoAnswerError(f"{why}, {TRIES} times")


async def _last_bytes(wanted: _Object, count: int) -> tuple[int, int]:
    """Find where the last bytes of an object lie, on a server that has to be asked for the size."""
    import obstore

    wanted.requests += 1
    size = int((await obstore.head_async(wanted.store.store, wanted.path))["size"])
    return max(0, size - count), size


async def _fetch_by_store(wanted: _Object) -> np.ndarray:
    span: Any = None
    if wanted.span is not None:
        span = SuffixByteRequest(-wanted.span[0]) if wanted.span[0] < 0 else RangeByteRequest(*wanted.span)
    wanted.requests += 1
    held = await wanted.store.get(wanted.path, default_buffer_prototype(), span)
    if held is None:
        raise FileNotFoundError(wanted.name)
    data = np.asarray(held.as_numpy_array()).view(np.uint8)
    wanted.nbytes += len(data)
    if wanted.then is not None:
        wanted.size = await wanted.store.getsize(wanted.path)
    return data


async def _fetch_pieces(wanted: _Object, admit: Admit, part: tuple[int, int | None] | None) -> np.ndarray:
    """A part of an object of one version, the first piece and then all others at once; or all in one request (None)."""
    begin, stop = part or (0, None)
    first, end, held, tag = 0, 0, np.empty(0, np.uint8), wanted.tag  # of the object that answers
    span = None
    if part is not None:
        span = (begin, 0) if begin < 0 else (begin, begin + PIECE if stop is None else min(stop, begin + PIECE))

    def room(answer: Any) -> np.ndarray:
        nonlocal held, first, end, tag
        size, tag = int(answer.meta["size"]), answer.meta["e_tag"]
        wanted.size, wanted.version = size, tag
        if wanted.span is None and size > MOST_PACKED * wanted.expected + HEADERS:
            raise ValueError(f"it has {size} bytes, far more than a chunk that decodes to {wanted.expected}")
        if wanted.span is not None and size < wanted.span[1]:
            raise ValueError(f"it is truncated: it has {size} bytes, fewer than the {wanted.span[1]} that are read")
        first = max(0, size + begin) if begin < 0 else begin
        end = size if part is None or begin < 0 or stop is None else stop
        admit(wanted, end - first)
        held = np.empty(end - first, np.uint8)
        return held[: (end if span is None or span[0] < 0 else min(span[1], end)) - first]

    await _piece(wanted, span, wanted.tag, room)
    if span is not None and end > span[1] > 0:
        starts = range(span[1], end, PIECE)
        spans = [((start, min(start + PIECE, end)), partial(_buffer_span, held, start - first)) for start in starts]
        await _gather_or_cancel([_piece(wanted, one, tag, into) for one, into in spans])
    return held


def _buffer_span(held: np.ndarray, at: int, answer: Any) -> np.ndarray:
    first, stop = answer.range
    return held[at : at + stop - first]


async def _gather_or_cancel(waited: list[Any]) -> list[Any]:
    """Return the results of all; where one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waited]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _piece(wanted: _Object, span: tuple[int, int] | None, tag: str | None, room: Room) -> None:
    """Fill what ``room`` gives for an answer with its bytes, which are those of ``span``, of the version ``tag``."""
    import obstore

    last = span is not None and span[0] < 0
    options: dict[str, Any] = {} if span is None else {"range": {"suffix": -span[0]} if last else span}
    options |= {"if_match": tag} if tag else {}
    broken = ""
    for number in range(TRIES):
        await _pause(number)
        wanted.requests += 1
        try:
            try:
                async with asyncio.timeout(SILENCE):
                    answer = await obstore.get_async(wanted.store.store, wanted.path, options=options)
            except FileNotFoundError:
                raise FileNotFoundError(wanted.name) from None
            size = int(answer.meta["size"])
            due = (0, size) if span is None else (span[0], min(span[1], size))
            if tuple(answer.range) != ((max(0, size + due[0]), size) if last else due):
                raise _BrokenOffError(f"bytes {answer.range} came for {span or 'the whole object'}")
            await _fill(wanted, answer, room(answer))
        except TimeoutError:
            broken = f"no answer for {SILENCE:.0f} s"
        except _BrokenOffError as error:
            broken = str(error)
        else:
            return
    raise NoAnswerError(f"{broken}, in {TRIES} tries")


async def _fill(wanted: _Object, answer: Any, part: np.ndarray) -> None:
    got, parts = 0, aiter(answer.stream(min_chunk_size=PART))
    while True:
        try:
            async with asyncio.timeout(SILENCE):
                came = np.frombuffer(await anext(parts), np.uint8)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise
        except Exception as error:  # of obstore: what came before the end of the body, in many words
            raise _BrokenOffError(f"it broke off after {got} of {len(part)} bytes") from error
        wanted.nbytes += len(came)
        if got + len(came) > len(part):
            raise _BrokenOffError(f"more than the {len(part)} bytes came that were announced")
        part[got : got + len(came)] = came
        got += len(came)
    if got != len(part):
        raise _BrokenOffError(f"it broke off after {got} of {len(part)} bytes")


async def _pause(number: int) -> None:
    if number:
        await asyncio.sleep(BACKOFF * 2 ** (number - 1) * random.uniform(0.5, 1.5))  # not all at the same time


# How fast the way to a store is, and how many bytes have to be in flight to use it.


SAMPLED = 128  # objects that may be asked for to measure; again from the first one where there are fewer
FEW = 4 * 2**20  # bytes of each
FULL = 3.0  # times that one request takes alone: so many at once wait for each other, and the link is found
MEASURING = 2.0  # seconds
SLACK = 3  # times what the link holds: what has arrived before its turn counts as well
LEAST = 32 * 2**20  # bytes in flight, if there is room: an estimate of a short time is no better than this


@dataclass(frozen=True)
class Remote:
    """Objects of an array that a pass fetches: some of their ``names``, and the decoded size of each."""

    array: Any
    names: tuple[str, ...]
    nbytes: int

    def link(self, room: int) -> Link:
        """Return the way to it, as :func:`link_of` measures it."""
        return link_of(self, room)

    def following(self, units: Iterable[Any], ask_for: Callable[[Any], None]) -> AbstractContextManager[None]:
        """Have it asked for in the order of ``units``, as :func:`following`."""
        return following(units, ask_for)


@dataclass(frozen=True)
class Link:
    """The way to a store: ``rate`` bytes a second of all requests together, ``seconds`` that a whole object of
    ``nbytes`` takes by itself. ``full``: more requests at once bring no more.
    """

    rate: float
    seconds: float
    nbytes: int
    full: bool = True

    @property
    def in_flight(self) -> int:
        """Bytes that use all of it."""
        return max(int(SLACK * self.rate * self.seconds), SLACK * self.nbytes, LEAST)

    def bounded(self, in_flight: int, threads: int) -> float:
        """The rate that so many bytes in flight allow, in a process with so many threads."""
        held = max(in_flight / SLACK, threads * self.nbytes)
        return min(self.rate, held / self.seconds)


UNKNOWN = Link(rate=1e8, seconds=0.3, nbytes=FEW, full=False)  # where nothing could be measured
_LINKS: dict[tuple[int, str], tuple[Any, Link]] = {}  # with the store, so that no other one has its id


def link_of(remote: Remote, room: int) -> Link:
    """Measure the way to a store by a few requests, once for each array; ``room`` bytes at most are in flight."""
    array = remote.array
    key = (id(array.store_path.store), array.path)
    if key not in _LINKS:
        try:
            found = sync(_measured(remote, room))
        except Exception:  # it will be said by the first pass
            found = UNKNOWN
        _LINKS[key] = (array.store_path.store, found)
    return _LINKS[key][1]


async def _measured(remote: Remote, room: int) -> Link:
    array, size = remote.array, min(remote.nbytes, FEW)
    names = itertools.cycle(remote.names)
    clock = time.perf_counter
    until = clock() + MEASURING

    async def at_once(count: int, nbytes: int) -> tuple[float, int]:
        pieces = [_Object.of(array, Piece(next(names), nbytes, (0, nbytes))) for _ in range(count)]
        begin = clock()
        came = await asyncio.gather(*(_sampled(piece) for piece in pieces))
        return clock() - begin, sum(came)

    await at_once(1, 1)  # names are looked up, connections made
    latency = (await at_once(1, 1))[0]
    alone, came = await at_once(1, size)
    if not came:
        raise FileNotFoundError(remote.names[0])
    alone = max(alone, latency)
    whole, rate, taken, count, full = remote.nbytes, came / alone, alone, 1, False
    while not full and clock() < until and 2 * count * size <= min(room, MOST):
        count, before = 2 * count, (taken, came)
        taken, came = await at_once(count, size)
        full = taken > FULL * alone
        rate = max(rate, came / taken)
    if full and taken > before[0]:  # what the last ones added: what all of them wait for at first is left out
        rate = max(rate, min((came - before[1]) / (taken - before[0]), 2 * rate))
    each = max(alone - latency, 1e-6) / size  # seconds a byte of one request
    return Link(rate=rate, seconds=latency + each * min(whole, PIECE), nbytes=whole, full=full)


async def _sampled(piece: _Object) -> int:
    """Bytes that came of the beginning of an object, which may be shorter; of one that is not there, none."""
    store, path = piece.store, piece.path
    try:
        async with asyncio.timeout(MEASURING):
            held = await store.get(path, default_buffer_prototype(), RangeByteRequest(*piece.span or (0, 1)))
    except TimeoutError:
        return 0
    return 0 if held is None else len(held)


MOST = 256 * 2**20  # bytes at once, of a measurement
