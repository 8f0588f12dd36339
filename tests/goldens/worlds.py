"""Folders with a run in them: packed to be kept, unpacked elsewhere, what commands say of them, and what differs."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import socket
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from awscrt.checksums import crc32c

from tests.goldens.doors import called
from tests.goldens.kinds import LEDGER, Kind

HERE, HOST = b"@here@", b"@host@"
HOLDER = re.compile(rb"process \d+ on \S+, since [^,\n]*")
NO_PROCESS = b"process 4194305 on @host@, since 2020-01-01 00:00:00 +0000"  # of this machine, and none that lives
# Of the processes that worked on a store, or made again from what else it holds.
PASSING = ("lock", "lock.taking", "epoch", "telemetry.jsonl", "starts.json", "ledger.json", "report.html")
# Keys whose values are of the moment: only their types are compared.
OF_THE_MOMENT = re.compile(
    r"seconds.*|.*_seconds|.*_per_second|time|started|created|last_commit|bytes|pid|peak_rss.*|predicted_.*seconds|since|head|hash|.*hash"
)
LOOKS = re.compile(r"(^|\.)looks(\.npy)?$")  # sizes, times and places of the files that a Gram was formed of
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
OF_THE_BITS = ("bits", "bytes_read")  # on other arithmetic the parts that were kept of a pass are of no use


# ------------------------------------------------------------------------------------------------ to keep, and back


def packed(folder: Path, leave: Sequence[str] = ()) -> bytes:
    """All below ``folder`` but what is called as in ``leave``, with the folder's own name taken out."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.relative_to(folder).parts[0] in leave:
                continue
            entry = tar.gettarinfo(path, str(path.relative_to(folder)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = int(entry.mtime)
            data = _without(path, bytes(folder)) if path.is_file() else b""
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def together(states: dict[str, bytes]) -> bytes:
    """Archives of one kind in one, in which what they share is there once."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:xz", preset=9) as tar:
        for name, data in states.items():
            entry = tarfile.TarInfo(f"{name}.tar")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return whole.getvalue()


def archive(fixtures: Path, name: str, state: str) -> bytes:
    """The archive of a kind in some state; of the first goldens each is a file of its own."""
    if (alone := fixtures / f"{name}.{state}.tar.gz").exists():
        return alone.read_bytes()
    with tarfile.open(fixtures / f"{name}.tar.xz") as tar, tar.extractfile(f"{state}.tar") as found:  # type: ignore[union-attr]
        return found.read()


def _without(path: Path, here: bytes) -> bytes:
    data = path.read_bytes()
    if path.name == "lock":
        data = HOLDER.sub(NO_PROCESS, data)
    if here not in data:
        return data
    data.decode()  # in the middle of binary numbers a name cannot be replaced
    return _changed(path.name, data, {here: HERE})


def _changed(name: str, data: bytes, by: dict[bytes, bytes]) -> bytes:
    """``data`` with names replaced; of a manifest also its checksum."""
    for old, new in by.items():
        data = data.replace(old, new)
    if name == "manifest.json":
        body, sealed = _unsealed(data)
        crc = f"{crc32c(body):08x}"
        data = body[:-1] + f', "crc32c": "{crc}"}}\n'.encode() if sealed else body + f"\n{crc}\n".encode()
    return data


def _unsealed(data: bytes) -> tuple[bytes, bool]:
    """A manifest without its checksum, and whether that was a key of it; at first it was a line of its own."""
    found = re.search(rb', "crc32c": "[0-9a-f]{8}"\}\n\Z', data)
    if found is None:
        return data.rstrip(b"\n").rpartition(b"\n")[0], False
    return data[: found.start()] + b"}", True


def unpacked(data: bytes, folder: Path) -> Path:
    """The same in ``folder``, with its name (and others) put in."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(folder, filter="tar")
    renamed(folder, {HERE: bytes(folder), HOST: socket.gethostname().encode()})
    return folder


def unpacked_sources(fixtures: Path, folder: Path) -> Path:
    """The data of all goldens in ``folder``."""
    for path in fixtures.glob("source-*.tar.gz"):
        unpacked(path.read_bytes(), folder / path.name.removeprefix("source-").removesuffix(".tar.gz"))
    return folder


def renamed(folder: Path, names: dict[bytes, bytes]) -> None:
    """Put other names in the place of some in every file below ``folder``."""
    for path in folder.rglob("*"):
        if path.is_file() and any(name in (data := path.read_bytes()) for name in names):
            path.write_bytes(_changed(path.name, data, names))


def simd() -> list[str]:
    """What NumPy computes powers, logarithms and angles with, whose last bits are others elsewhere."""
    found: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])  # type: ignore[call-overload]
    return found


def arithmetic(store: Path) -> dict[str, str]:
    """What the last bits of a run depend on in this process, as a run writes it down."""
    from npmdask import top_k

    top_k(np.diag([3.0, 2.0, 1.0]), 1, store=store)
    return dict(json.loads((store / "run.json").read_text())["environment"])


# ------------------------------------------------------------------------------------------------ what commands say


def said(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and stdout of a command."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = called(arguments)
    assert code in (0, 4), err.getvalue()
    return code, out.getvalue()


def resumed(kind: Kind) -> dict[str, Any]:
    """What a kind says when it goes on: the exit code, the JSON in its last line, and what it has cost."""
    code, out = said(kind.again)
    answer = json.loads(out.splitlines()[-1]) if "--json" in kind.again else None
    return neutral({"exit_code": code, "json": answer} | charged(kind))


def fingerprint_of(store: Path) -> str:
    """What a run knows its data by."""
    return str(json.loads((store / "run.json").read_text())["data"]["fingerprint"])


def resumed_here(kind: Kind) -> dict[str, Any]:
    """The same as :func:`resumed` of a run that was unpacked: data that are known by where they lie are known by where
    they lie now, and in all that is compared by where they lay.
    """
    if not kind.placed:
        return resumed(kind)
    said(["run", "run.toml", "--store", "elsewhere", "--set", "algorithm.max_steps=1", "--quiet"])
    before, now = fingerprint_of(Path(kind.store)), fingerprint_of(Path("elsewhere"))
    renamed(Path(kind.store), {before.encode(): now.encode()})
    text = json.dumps(resumed(kind))
    renamed(Path(kind.store), {now.encode(): before.encode()})
    return dict(json.loads(text.replace(now, before)))


def told(kind: Kind, *, finished: bool) -> dict[str, Any]:
    """What the commands that know stores say of that of a kind, in the working folder."""
    found: dict[str, Any] = {}
    if "inspect" in kind.doors:
        found["inspect"] = json.loads(said(["inspect", kind.store, "--json"])[1])
    if "status" in kind.doors:
        found["status"] = json.loads(said(["status", ".", "--json"])[1])
    if "report" in kind.doors and finished:
        page = Path(said(["report", kind.store])[1].strip()).read_text()
        names = sorted(set(re.findall(r"<td>([a-z_]+\.[a-z_0-9.]+)</td>", page)))
        found["report"] = {"parameters": names}
    if "export" in kind.doors and finished:
        arrays = exported(kind.store)
        found["export"] = {name: [str(array.dtype), list(array.shape)] for name, array in arrays.items()}
        found["bits"] = {name: digest(array) for name, array in arrays.items()}
    return neutral(found | charged(kind))


def charged(kind: Kind) -> dict[str, Any]:
    """What the ledger beside a private run says."""
    return {"ledger": json.loads(said(["ledger", "show", "--json", "--ledger", LEDGER])[1])} if kind.private else {}


def exported(store: str | Path) -> dict[str, np.ndarray]:
    """What a store exports."""
    said(["export", str(store), "out.npz"])
    with np.load("out.npz") as out:
        return {name: out[name] for name in out.files}


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def neutral(document: Any, name: str = "") -> Any:
    """Without the working folder, and without what is of the moment."""
    if isinstance(document, dict):
        return {key: neutral(value, key) for key, value in document.items()}
    if isinstance(document, list):
        of_all = 1 if OF_THE_MOMENT.fullmatch(name) else len(document)  # how many processes there are is of the moment
        return [neutral(value, name) for value in document[:of_all]]
    if OF_THE_MOMENT.fullmatch(name) and document is not None:
        return f"({type(document).__name__})"
    return nameless(document, Path.cwd()) if isinstance(document, str) else document


def nameless(text: str, folder: Path) -> str:
    """Without the name of a folder, and the ports of nodes."""
    return ADDRESS.sub("http://node", text.replace(str(folder), HERE.decode()))


# ------------------------------------------------------------------------------------------------ what differs


# Names that commits after that of the first goldens added on purpose: what private nodes and copies say of a weak
# promise, whether an answer converged (of `inspect` and `status`), what is known of a process that was killed, on which
# device a run may compute and what requests cost, and notes on means. Of warnings and notes there may be more.
LATER = frozenset(
    {
        *("explained_variance", "explained_variance_ratio", "warnings", "notes", "answered", "converged", "outcome"),
        *("killed", "pass_committed", "device", "device_memory", "request_price"),
    }
)
MORE = (".warnings", ".notes")
GONE = {"hindsight_steps"}  # names that a later commit took out on purpose: decision 37


def differences(
    wanted: Any, found: Any, tolerance: float = 0.0, where: str = "", *, later: frozenset[str] = LATER
) -> list[str]:
    """What of a JSON document is not as it was. Sentences may be reworded; names, words and numbers may not.

    ``tolerance``: of numbers, where the arithmetic is another one, and a warning may say so; infinite: they may be any,
    where noise is drawn for the very bits of a block. ``later``: names that may be new.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        lost = [f"{where}.{name} is missing" for name in wanted.keys() - found.keys() - GONE]
        lost += [f"{where}.{name} is new" for name in found.keys() - wanted.keys() - later]
        both = {name for name in wanted.keys() & found.keys() if not tolerance or name not in OF_THE_BITS}
        return sorted(lost) + [
            said
            for name in sorted(both)
            for said in differences(wanted[name], found[name], tolerance, f"{where}.{name}", later=later)
        ]
    if isinstance(wanted, list) and isinstance(found, list):
        if tolerance and all(isinstance(one, str) for one in wanted + found):
            return []
        if where.endswith(MORE) and later:
            wanted, found = (
                [said for said in one if said not in other] for one, other in ((wanted, found), (found, wanted))
            )
            found = found[: len(wanted)]
        if len(wanted) != len(found):
            return [f"{where}: {len(found)} entries in the place of {len(wanted)}"]
        pairs = enumerate(zip(wanted, found, strict=True))
        return [said for i, (w, f) in pairs for said in differences(w, f, tolerance, f"{where}[{i}]", later=later)]
    return [] if _same(wanted, found, tolerance) else [f"{where}: {found!r} in the place of {wanted!r}"]


def _same(wanted: Any, found: Any, tolerance: float) -> bool:
    if type(wanted) is not type(found):
        return False
    if isinstance(wanted, str) and " " in wanted:
        return " " in found
    if isinstance(wanted, float) and tolerance:
        return bool(abs(wanted - found) <= tolerance * max(1.0, abs(wanted)))
    return bool(wanted == found)


def far_apart(wanted: np.ndarray, found: np.ndarray, tolerance: float) -> bool:
    """Whether an exported array is another one. The sign of a column is arbitrary, or the phase of a complex one."""
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return True
    if wanted.dtype.kind not in "fc":
        return bool((wanted != found).any())
    along = (found.conj() * wanted).sum(axis=0) if wanted.ndim == 2 else np.ones(1)
    turns = np.divide(along, np.abs(along), out=np.ones_like(along), where=along != 0)
    return bool(np.abs(found * turns - wanted).max() > tolerance * max(1.0, np.abs(wanted).max()))


def files(folder: Path, stores: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The files of stores that are a function of the data and of what was asked for, by name."""
    for path in (path for store in stores for path in sorted((folder / store).rglob("*"))):
        passing = path.name in PASSING or path.name.startswith(".") or LOOKS.search(path.name)
        if path.is_file() and not passing:
            yield str(path.relative_to(folder)), path


def changed_files(
    wanted: Path, found: Path, stores: Sequence[str], *, exact: bool = True, later: frozenset[str] = LATER
) -> list[str]:
    """Which files of stores are not as in another folder: missing, new, or (``exact``) with other content.

    ``columns``, the means that a finished run keeps, is a part that older versions did not write.
    """
    here, there = dict(files(wanted, stores)), dict(files(found, stores))
    lost = sorted([f"{name} is missing" for name in here.keys() - there.keys()])
    lost += sorted([f"{name} is new" for name in there.keys() - here.keys() if "/columns/" not in name])
    for name in sorted(here.keys() & there.keys()) if exact else ():
        if name.endswith(".json"):
            lost += differences(_read(here[name], wanted), _read(there[name], found), where=name, later=later)
        elif here[name].read_bytes() != there[name].read_bytes():
            lost.append(f"{name} has other bytes")
    return lost


def _read(path: Path, folder: Path) -> Any:
    """The JSON in a file; of a manifest without its checksum, and of a Gram without how files looked and what was read
    of them at last.
    """
    data = path.read_bytes()
    text = nameless((_unsealed(data)[0] if path.name == "manifest.json" else data).decode(), folder)
    return json.loads(text, object_hook=lambda table: {n: v for n, v in table.items() if not _of_looking(n, table)})


def _of_looking(name: str, table: dict[str, Any]) -> bool:
    return LOOKS.search(name) is not None or (name == "bytes" and table.keys() == {"rows", "bytes"})
