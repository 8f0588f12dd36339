"""Compute on a GPU, or on anything that has the array API: memory, copies, the few products that libraries spell
differently.

All arithmetic is of one stream in one order, so the same card gives the same bits; copies have a stream of their own.
TF32 is never used. Libraries are imported when a device is first opened, never before.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np

from npmdask.core.numerics.domains import DEVICES
from npmdask.errors import MemoryRefusedError, RefusedError, extra, require

LIBRARIES = ("cupy", "torch")  # of NVIDIA GPUs, in the order in which they are tried
SHARE = 0.9  # of the free memory of a card that is used where no limit is given
PANEL = 512  # columns of a product: of the lower triangle so much is wasted beside the diagonal
BACK = 8 * 2**20  # bytes that come back at once
TAKEN = 512 * 2**20  # of a card's memory by what no pool counts: the context, kernels, workspaces of cuBLAS


@dataclass(frozen=True)
class Device:
    """The device on which sums are formed: a name that other processes can be sent, each of which opens it once.

    Parameters
    ----------
    library : "cupy" or "torch"; "numpy" and "array_api_strict" run the same code on the processor, for tests. Several,
        between bars, where another process opens it: the first of them that finds a device there.
    memory : bytes of the device that a process may use; None: its share of most of what is free.
    sharing : processes that use it at the same time.
    """

    library: str
    memory: int | None = None
    sharing: int = 1

    @property
    def backend(self) -> Backend:
        """The device, opened by this process when it is first asked for."""
        with _OPENING:
            if self not in _OPEN:
                library = self.library if self.library in BACKENDS else _finding(self.library.split("|"))
                _OPEN[self] = BACKENDS[library](self.memory, self.sharing)
            return _OPEN[self]

    def begin(self, each: int, beside: int, threads: int) -> tuple[dict[str, str], int]:
        """Open it for a run, and keep data on it where its memory is not needed otherwise.

        Parameters
        ----------
        each, beside : bytes that each of ``threads`` needs, and that all need beside them.

        Returns
        -------
        facts, limit
            What the last bits depend on, and the bytes of it that may be used.

        Raises
        ------
        RefusedError
            There is no such device, or too little memory of it.
        """
        backend, mib = self.backend, 2**20
        room = backend.limit - beside - each * threads
        if room < 0:
            fitting = max(backend.limit - beside, 0) // each
            fewer = f"set threads = {fitting}, " if fitting else ""
            raise MemoryRefusedError(
                f"{backend.name} may use {backend.limit // mib} MiB in a process, and {threads} threads need "
                f'{-(-(beside + each * threads) // mib)} MiB of it: {fewer}raise device_memory, or set device = "cpu"'
            )
        backend.allow(room)
        return backend.facts, backend.limit

    def begin_everywhere(self, executor: Any, plan: Any) -> tuple[dict[str, Any], list[str]]:
        """Open the devices of all processes of ``executor`` for a run.

        Returns
        -------
        use, several
            :class:`npmdask.core.runs.resources.DeviceUse` by field, and what to say of devices that differ.
        """
        found: list[tuple[dict[str, str], int]] = executor.everywhere(
            self.begin, plan.device_task, plan.device_state, executor.threads
        )
        names = {key: "; ".join(sorted({facts[key] for facts, _ in found})) for key in found[0][0]}
        several = (
            f"workers have different GPUs or libraries ({names['device']}; {names['library']}): the result "
            "is as accurate, but its last bits depend on which worker does what"
        )
        limit = min(limit for _, limit in found)
        planned = plan.device_peak + min(plan.device_data, max(limit - plan.device_peak, 0))
        differ = any("; " in name for name in names.values())
        return {**names, "planned": planned, "limit": limit}, [several] if differ else []

    @contextmanager
    def suffices(self, name: str, planned: int) -> Iterator[None]:
        """Say what to do where the memory of the device does not suffice in spite of its plan."""
        try:
            yield
        except Exception as error:
            if type(error).__name__ != "OutOfMemoryError":  # of either library
                raise
            raise MemoryRefusedError(
                f"the memory of {name} does not suffice, although {planned // 2**20} MiB of "
                "it were planned: does another process use it? Set device_memory to less than what is free, resume "
                'with fewer threads, or with device = "cpu"'
            ) from error

    def end(self) -> int:
        """Let go of everything that a run held on it. Returns the most bytes that were used of it."""
        backend = self.backend
        peak = backend.peak()
        backend.close()
        return peak

    def pairs(self, matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """So many eigenvalues of a symmetric matrix, the largest first, and their vectors."""
        return self.backend.pairs(matrix, count)


_OPENING = threading.Lock()
_OPEN: dict[Device, Backend] = {}


def chosen_device(asked: str, memory: int | None = None) -> Device | None:
    """The device that is ``asked`` for: None is the processor.

    Parameters
    ----------
    asked : "cpu"; "cuda", an NVIDIA GPU; "auto", one where there is one.
    memory : bytes of it that may be used.

    Raises
    ------
    BadInputError
        No device is called so.
    RefusedError
        There is no GPU, or no library for it.
    """
    require(asked in DEVICES, f'device = {asked!r} is none: choose "cpu", "cuda" (an NVIDIA GPU) or "auto"')
    if asked == "cpu":
        require(memory is None, 'device_memory is of a GPU: set device = "cuda" or "auto" with it')
        return None
    try:
        return Device(_finding(LIBRARIES), memory)
    except RefusedError:
        if asked == "auto":
            return None
        raise


def elsewhere(memory: int | None = None, sharing: int = 1) -> Device:
    """A device that this process does not look for: others do, each of which opens its own."""
    return Device("|".join(LIBRARIES), memory, sharing)


def _finding(libraries: Sequence[str]) -> str:
    """The first of ``libraries`` that finds a device.

    Raises
    ------
    RefusedError
        None does.
    """
    why = []
    for library in libraries:
        try:
            module = import_module(library)
        except ImportError:
            why.append(f"{library} is not installed")
            continue
        missing = BACKENDS[library].missing(module)
        if missing is None:
            return library
        why.append(f"{library} finds no NVIDIA GPU ({missing})")
    raise RefusedError(
        f'device = "cuda": {", ".join(why)}. Install cupy or torch for the CUDA of this machine, or leave '
        'device = "cpu"'
    )


class Backend:
    """A device as this process sees it. This one is the processor by way of a library with the array API.

    Parameters
    ----------
    memory : bytes that may be used; None: most of what is free.
    sharing : processes between which that is divided.

    Attributes
    ----------
    xp : the library, as the array API names its functions.
    turn : held by the thread that issues work: the sums of many threads share one stream.
    limit : bytes that may be used.
    """

    library = "numpy"

    def __init__(self, memory: int | None, sharing: int = 1) -> None:
        self.turn = threading.RLock()
        self.xp = self._namespace()
        free = self.free_memory()
        if memory is not None and memory > free:
            raise RefusedError(
                f"device_memory = {memory // 2**20}MiB is more than the {free // 2**20} MiB that are free on "
                f"{self.name}: give less, or leave it out"
            )
        self.limit = int(SHARE * free / sharing) if memory is None else memory
        self._kept: dict[Any, Any] = {}  # parts of the data, from one pass to the next
        self._room = 0
        self._back = list[np.ndarray]()
        self._free = list[Slot]()  # that no task uses now

    def _namespace(self) -> Any:
        if self.library == "array_api_strict":
            return import_module("array_api_strict")
        with extra("gpu"):
            return import_module(f"array_api_compat.{self.library}")

    @staticmethod
    def missing(module: Any) -> str | None:
        """Why ``module`` cannot be used here; None if it can."""
        return None

    @property
    def name(self) -> str:
        """The device, for people."""
        return f"this processor by {self.library}"

    @property
    def facts(self) -> dict[str, str]:
        """Return the facts on which the last bits depend."""
        return {"device": self.name, "library": f"{self.library} {version(self.library.replace('_', '-'))}"}

    def free_memory(self) -> int:
        """Bytes that nothing uses."""
        return 2**34

    def peak(self) -> int:
        """The most bytes that were in use since the last look; 0 where that is not counted."""
        return 0

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Issue work, in turn with other threads."""
        with self.turn:
            yield

    def pinned(self, nbytes: int) -> np.ndarray:
        """Bytes of host memory that copies to the device need not touch twice."""
        return np.empty(nbytes, np.uint8)

    def slot(self, nbytes: int) -> Slot:
        """Memory here and there through which data go to the device."""
        return Slot(self, nbytes)

    @contextmanager
    def lane(self, count: int, nbytes: int) -> Iterator[Iterator[Slot]]:
        """Slots of ``nbytes`` for one task, in turns. Pinning memory takes 0.4 s a GiB, so they are used again."""
        slots = list[Slot]()
        with self.turn:
            if self._free and self._free[0].nbytes != nbytes:
                self._free.clear()  # those of an earlier run
            while self._free and len(slots) < count:
                slots.append(self._free.pop())
        slots += [self.slot(nbytes) for _ in range(count - len(slots))]
        try:
            yield itertools.cycle(slots)
        finally:
            with self.turn:
                self._free += slots

    @cached_property
    def readers(self) -> ThreadPoolExecutor:
        """Threads that fill slots."""
        return ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0))), "npmdask-reader")

    @contextmanager
    def _staging(self) -> Iterator[np.ndarray]:
        """Pinned memory through which sums come back."""
        with self.turn:
            host = self._back.pop() if self._back else None
        host = self.pinned(BACK) if host is None else host
        try:
            yield host
        finally:
            with self.turn:
                self._back.append(host)

    def close(self) -> None:
        """Let go of everything that a run has held."""
        with self.turn:
            self._free.clear()
            self._back.clear()
        self.allow(0)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Float64 zeros on the device."""
        return self.xp.zeros(shape, dtype=self.xp.float64)

    def upload(self, values: np.ndarray) -> Any:
        """A copy on the device, of something small."""
        return self.xp.asarray(np.array(values))

    def seen_as(self, sent: Any, dtype: np.dtype) -> Any:
        """Bytes on the device as numbers of ``dtype``."""
        return self.xp.asarray(_as_numpy(sent).view(dtype))

    def download(self, *arrays: Any) -> list[np.ndarray]:
        """Copies here, when all that makes them is done; other threads issue work meanwhile."""
        return [np.array(_as_numpy(array)) for array in arrays]

    def add_gram(self, total: Any, rows: Any) -> None:
        """``total += rows^T rows``, in the upper triangle; what is below it, no one reads."""
        d = total.shape[0]
        for start in range(0, d, PANEL):  # rows of blocks are multiplied faster than single blocks
            stop = min(start + PANEL, d)
            self.add_product(total[start:stop, start:], rows[:, start:stop], rows[:, start:])

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        """``total += left^T right``."""
        total[:, :] = total + self.xp.matmul(left.T, right)

    def scattered(self, places: Any, values: Any, shape: tuple[int, int]) -> Any:
        """Zeros of ``shape`` with float64 ``values`` at ``places``, all different, of the flat array."""
        out = np.zeros(shape)
        out.reshape(-1)[_as_numpy(places)] = _as_numpy(values)
        return self.xp.asarray(out)

    def pairs(self, matrix: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """So many eigenvalues of a symmetric matrix, the largest first, and their vectors."""
        with self.computing():
            values, vectors = self.xp.linalg.eigh(self.upload(matrix))
            made = self.xp.flip(values[-count:]), self.xp.flip(vectors[:, -count:], axis=1)
        found, turned = self.download(*made)
        return found, turned

    def integer_gram(self, rows: Any) -> Any:
        """``rows^T rows`` of int8 numbers, exactly, in int32; None where that is not known how."""
        return None

    def allow(self, nbytes: int) -> None:
        """Keep up to so many bytes of the data from now on, in place of what was kept."""
        with self.turn:
            self._kept.clear()
            self._room = nbytes

    @property
    def room(self) -> int:
        """Bytes of the data that may still be kept."""
        return self._room

    def kept(self, key: Any) -> Any:
        """Return the object kept under ``key``; None if there is none."""
        return self._kept.get(key)

    def reserve(self, nbytes: int) -> bool:
        """Take so much of what may be kept; False if there is not so much left."""
        with self.turn:
            fits = nbytes <= self._room
            self._room -= nbytes if fits else 0
            return fits

    def release(self, nbytes: int) -> None:
        """Give back what was reserved."""
        with self.turn:
            self._room += nbytes

    def keep(self, key: Any, value: Any) -> None:
        """Keep a part of the data on the device, for which memory was reserved."""
        with self.turn:
            self._kept[key] = value


def _as_numpy(array: Any) -> np.ndarray:
    """An array of a library of the processor, as NumPy's."""
    return np.asarray(array if isinstance(array, np.ndarray | np.generic) else np.from_dlpack(array))


class Slot:
    """Memory here and there through which data go to the device, one part after the other.

    ``wait`` is called by the thread that reads, ``send`` and ``done`` by the one that computes.
    """

    def __init__(self, backend: Backend, nbytes: int) -> None:
        self.backend, self.nbytes, self.host = backend, nbytes, backend.pinned(nbytes)

    def wait(self) -> None:
        """Until the host memory may be written again."""

    def send(self, values: np.ndarray) -> Any:
        """A copy of ``values``, which lie in the host memory, on the device; ordered before what is computed next."""
        return self.backend.xp.asarray(values.copy())

    def done(self) -> None:
        """Everything that reads the copy has been issued."""


class StreamSlot(Slot):
    """A slot whose copies are made by the copying stream of a GPU, while another one computes."""

    backend: Any

    def _begin(self, events: Iterator[Any]) -> None:
        """Nothing reads the memory of the device yet."""
        self._sent, self._read = events
        self.done()

    def _copy_to_device(self, values: np.ndarray) -> Any:
        """A copy of ``values`` on the device, as soon as the copying stream has come to it."""
        raise NotImplementedError

    def wait(self) -> None:
        self._read.synchronize()

    def send(self, values: np.ndarray) -> Any:
        array = self._copy_to_device(values)
        self._sent.record(self.backend.copying)
        self.backend.compute.wait_event(self._sent)
        return array

    def done(self) -> None:
        self._read.record(self.backend.compute)


class Strict(Backend):
    """The strictest reading of the array API: shows that the code asks for nothing else."""

    library = "array_api_strict"


class Cupy(Backend):
    """An NVIDIA GPU by CuPy."""

    library = "cupy"

    def __init__(self, memory: int | None, sharing: int = 1) -> None:
        os.environ.setdefault("CUPY_TF32", "0")
        import cupy
        from cupy import cublas

        self.cupy, self.cublas = cupy, cublas
        self.compute, self.copying = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
        super().__init__(memory, sharing)
        self.pool = cupy.cuda.MemoryPool()
        self.pool.set_limit(size=self.limit)
        self._peak = 0

    @staticmethod
    def missing(module: Any) -> str | None:
        try:
            return None if module.cuda.runtime.getDeviceCount() else "none is visible"
        except module.cuda.runtime.CUDARuntimeError as error:
            return str(error).splitlines()[0]

    @property
    def name(self) -> str:
        found = self.cupy.cuda.runtime.getDeviceProperties(self.cupy.cuda.Device().id)
        return f"{found['name'].decode()}, {found['multiProcessorCount']} multiprocessors"

    @property
    def facts(self) -> dict[str, str]:
        blas = self.cupy.cuda.cublas.getVersion(self.cupy.cuda.device.get_cublas_handle())
        return {"device": self.name, "library": f"cupy {self.cupy.__version__}, cuBLAS {blas}"}

    def free_memory(self) -> int:
        return max(int(self.cupy.cuda.runtime.memGetInfo()[0]) - TAKEN, 0)

    def peak(self) -> int:
        return int(self.pool.total_bytes())

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self.turn, self.compute, self.cupy.cuda.using_allocator(self.pool.malloc):
            yield

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.frombuffer(self.cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)

    def slot(self, nbytes: int) -> Slot:
        return CupySlot(self, nbytes)

    def upload(self, values: np.ndarray) -> Any:
        return self.cupy.asarray(values)

    def seen_as(self, sent: Any, dtype: np.dtype) -> Any:
        return sent.view(dtype)

    def download(self, *arrays: Any) -> list[np.ndarray]:
        with self.computing():
            made = self.compute.record()
        made.synchronize()
        with self.cupy.cuda.Stream(non_blocking=True) as own, self._staging() as host:
            return [self._fetch_pinned(array, own, host) for array in arrays]

    def _fetch_pinned(self, array: Any, own: Any, host: np.ndarray) -> np.ndarray:
        """By way of pinned memory: seven times as fast as without."""
        out = np.empty(array.shape, array.dtype)
        there, here = self.cupy.ascontiguousarray(array).reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
        for start in range(0, here.nbytes, len(host)):
            stop = min(start + len(host), here.nbytes)
            there[start:stop].get(stream=own, out=host[: stop - start], blocking=False)
            own.synchronize()
            here[start:stop] = host[: stop - start]
        return out

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        self.cublas.gemm("T", "N", left, right, out=total, alpha=1.0, beta=1.0)

    def add_gram(self, total: Any, rows: Any) -> None:
        self.cublas.syrk("T", rows, out=total, alpha=1.0, beta=1.0, lower=False)

    def integer_gram(self, rows: Any) -> Any:
        count, d = rows.shape
        if count % 4 or d % 4:
            return None
        cupy, blas = self.cupy, self.cupy.cuda.cublas
        out, turned = cupy.empty((d, d), cupy.int32), cupy.ascontiguousarray(rows.T)  # along rows: ten times faster
        one, none = np.ones(1, np.int32), np.zeros(1, np.int32)
        of_rows, of_sums = (turned.data.ptr, 3, count), (out.data.ptr, 10, d)  # CUDA_R_8I, CUDA_R_32I
        blas.gemmEx(
            cupy.cuda.device.get_cublas_handle(),
            *(blas.CUBLAS_OP_T, blas.CUBLAS_OP_N, d, d, count),
            one.ctypes.data,
            *of_rows,
            *of_rows,
            none.ctypes.data,
            *of_sums,
            72,  # CUBLAS_COMPUTE_32I
            -1,  # the default algorithm
        )
        return out

    def scattered(self, places: Any, values: Any, shape: tuple[int, int]) -> Any:
        out = self.cupy.zeros(shape)
        out.reshape(-1)[places] = values
        return out


class CupySlot(StreamSlot):
    """By CuPy."""

    def __init__(self, backend: Cupy, nbytes: int) -> None:
        super().__init__(backend, nbytes)
        cupy = backend.cupy
        with backend.computing():
            self.there = cupy.empty(nbytes, cupy.uint8)
        backend.compute.synchronize()
        self._begin(cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def _copy_to_device(self, values: np.ndarray) -> Any:
        array = self.there[: values.nbytes].view(values.dtype).reshape(values.shape)
        array.set(values, stream=self.backend.copying)
        return array


class Torch(Backend):
    """An NVIDIA GPU by PyTorch."""

    library = "torch"

    def __init__(self, memory: int | None, sharing: int = 1) -> None:
        import torch

        self.torch, self.place = torch, torch.device("cuda", torch.cuda.current_device())
        torch.backends.cuda.matmul.allow_tf32 = False
        self.compute, self.copying = torch.cuda.Stream(), torch.cuda.Stream()
        super().__init__(memory, sharing)
        total = torch.cuda.get_device_properties(self.place).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit / total), self.place)

    @staticmethod
    def missing(module: Any) -> str | None:
        return None if module.cuda.is_available() else "none is visible"

    @property
    def name(self) -> str:
        found = self.torch.cuda.get_device_properties(self.place)
        return f"{found.name}, {found.multi_processor_count} multiprocessors"

    @property
    def facts(self) -> dict[str, str]:
        return {"device": self.name, "library": f"torch {self.torch.__version__}"}

    def free_memory(self) -> int:
        return max(int(self.torch.cuda.mem_get_info(self.place)[0]) - TAKEN, 0)

    def peak(self) -> int:
        return int(self.torch.cuda.max_memory_reserved(self.place))

    @contextmanager
    def computing(self) -> Iterator[None]:
        with self.turn, self.torch.cuda.stream(self.compute), self.torch.no_grad():
            yield

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.asarray(self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True).numpy())

    def slot(self, nbytes: int) -> Slot:
        return TorchSlot(self, nbytes)

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self.torch.zeros(shape, dtype=self.torch.float64, device=self.place)

    def upload(self, values: np.ndarray) -> Any:
        return self.torch.from_numpy(np.array(values)).to(self.place)

    def seen_as(self, sent: Any, dtype: np.dtype) -> Any:
        return sent.view(self.torch.from_numpy(np.empty(0, dtype)).dtype)

    def download(self, *arrays: Any) -> list[np.ndarray]:
        with self.computing():
            made = self.compute.record_event()
        made.synchronize()
        own = self.torch.cuda.Stream()
        with self.torch.cuda.stream(own), self._staging() as host:
            return [self._fetch_pinned(array, own, host) for array in arrays]

    def _fetch_pinned(self, array: Any, own: Any, host: np.ndarray) -> np.ndarray:
        """By way of pinned memory: seven times as fast as without."""
        held = self.torch.from_numpy(host)
        there = array.contiguous().reshape(-1).view(self.torch.uint8)
        out = np.empty(there.shape, np.uint8)
        for start in range(0, len(out), len(host)):
            stop = min(start + len(host), len(out))
            held[: stop - start].copy_(there[start:stop], non_blocking=True)
            own.synchronize()
            out[start:stop] = host[: stop - start]
        return out.view(self.torch.empty(0, dtype=array.dtype).numpy().dtype).reshape(tuple(array.shape))

    def add_product(self, total: Any, left: Any, right: Any) -> None:
        total.addmm_(left.T, right)

    def scattered(self, places: Any, values: Any, shape: tuple[int, int]) -> Any:
        out = self.torch.zeros(shape, dtype=self.torch.float64, device=self.place)
        out.view(-1)[places.long()] = values.double()
        return out

    def integer_gram(self, rows: Any) -> Any:
        turned = rows.T.contiguous()  # along rows: ten times faster
        if turned.shape[0] % 8 or turned.shape[1] % 8 or turned.shape[0] <= 16:
            return None
        return self.torch._int_mm(turned, turned.T)


class TorchSlot(StreamSlot):
    """By PyTorch."""

    def __init__(self, backend: Torch, nbytes: int) -> None:
        super().__init__(backend, nbytes)
        torch = backend.torch
        with backend.computing():
            self.there = torch.empty(nbytes, dtype=torch.uint8, device=backend.place)
        backend.compute.synchronize()
        self._begin(torch.cuda.Event() for _ in range(2))

    def _copy_to_device(self, values: np.ndarray) -> Any:
        torch = self.backend.torch
        host = torch.from_numpy(values)
        array = self.there[: values.nbytes].view(host.dtype).reshape(values.shape)
        with torch.cuda.stream(self.backend.copying):
            array.copy_(host, non_blocking=True)
        return array


BACKENDS: dict[str, type[Backend]] = {each.library: each for each in (Backend, Strict, Cupy, Torch)}


def visible_cards() -> list[str]:
    """The GPUs that processes of this machine may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [name for name in told.split(",") if name]
    return [str(number) for number in range(len(glob("/dev/nvidia[0-9]*")))]
