"""The secret key: where it lies, who may read it, what it never shows, and how it ends."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import logging
import multiprocessing
import os
import pickle
import pprint
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.errors import BadInputError, RefusedError
from npmdask.privacy.mechanisms.noise_key import KEY_BYTES, Entropy, Keystream, destroy_key, encode_purpose

# RFC 8439, appendix A.1, test vectors 1 and 2: key 0, nonce 0, blocks 0 and 1
VECTOR = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secret" / "key"


def test_the_stream_is_that_of_the_standard() -> None:
    """Mutants: ChaCha8, the counter from 1, big-endian words, words that skip what was read."""
    assert Keystream(bytes(32)).read(128) == VECTOR
    stream = Keystream(bytes(32))
    assert stream.read(24) == VECTOR[:24]
    assert stream.words(3).tolist() == [int.from_bytes(VECTOR[i : i + 8], "little") for i in (24, 32, 40)]
    assert stream.words(1).dtype == np.uint64


def test_one_purpose_one_stream(path: Path) -> None:
    """Mutants: purposes joined without lengths or types, the key left out, ``bound_to`` left out, nonce reuse."""
    entropy = Entropy.create(path)
    purposes: list[tuple[Any, ...]] = [
        ("noise", 1), ("noise", "1"), ("noise", b"1"), ("noise1",), ("nois", "e1"), ("noise", 1, ""), (), ("",),
        ("", ""), (1, "noise"), ("noise", -1), ("noise", 11), ("noise", 1, 1), ("commitment",),
        ("as", "b"), ("a", "sb"),
    ]  # fmt: skip
    heads = [entropy.keystream(*purpose).read(32) for purpose in purposes]
    heads += [Entropy.open(path, bound_to=data).keystream("noise", 1).read(32) for data in ("a", "b")]
    heads += [entropy.keystream("noise", 1).aside(name).read(32) for name in ("a", "b")]
    heads.append(Entropy.create(path.with_name("other")).keystream("noise", 1).read(32))
    heads += [bytes.fromhex(entropy.commitment.ljust(64, "0")), path.read_bytes()]
    assert len({head[:16] for head in heads}) == len(heads)
    assert entropy.keystream("commitment")._key.hex()[:32] != entropy.commitment  # half a key must not be public
    again = Entropy.open(path)
    assert [again.keystream(*purpose).read(32) for purpose in purposes] == heads[: len(purposes)]
    assert again.commitment == entropy.commitment != Entropy.open(path, bound_to="a").commitment
    for wrong in (1.0, True, None, np.int64(3)):
        with pytest.raises(BadInputError, match="purpose"):
            encode_purpose("noise", wrong)  # type: ignore[arg-type]


def test_a_stream_aside_does_not_move_the_stream() -> None:
    one, other = Keystream(VECTOR[:32]), Keystream(VECTOR[:32])
    one.aside("more", 3).read(100)
    assert one.read(64) == other.read(64)


def test_a_stream_ends_before_it_would_repeat() -> None:
    stream = Keystream(bytes(32))
    stream._used = (1 << 38) - 8
    assert len(stream.read(8)) == 8
    with pytest.raises(RefusedError, match="256 GiB"):
        stream.read(1)


def test_the_file_is_ours_alone(path: Path) -> None:
    """Mutants: created by ``open`` (0644), no O_EXCL, the folder by default mode."""
    old = os.umask(0)
    try:
        Entropy.create(path)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert len(path.read_bytes()) == KEY_BYTES and any(path.read_bytes())
    before = path.read_bytes()
    with pytest.raises(RefusedError, match="exists already"):
        Entropy.create(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644])
def test_a_file_that_others_may_read_is_refused(path: Path, mode: int) -> None:
    Entropy.create(path)
    path.chmod(mode)
    with pytest.raises(RefusedError, match="chmod 600"):
        Entropy.open(path)


def test_files_that_are_no_keys_are_refused(path: Path) -> None:
    """Mutants: a missing file made anew on open, a short key padded, links followed."""
    with pytest.raises(RefusedError, match="is missing"):
        Entropy.open(path)
    assert not path.exists()
    entropy = Entropy.create(path)
    whole = path.read_bytes()
    for content in (b"", whole[:31], whole + b"\0"):
        path.write_bytes(content)
        with pytest.raises(RefusedError, match="is incomplete"):
            Entropy.open(path)
    path.write_bytes(bytes(32))
    with pytest.raises(RefusedError, match="was destroyed"):
        Entropy.open(path)
    path.write_bytes(whole)
    link = path.with_name("link")
    link.symlink_to(path)
    for other in (link, path.parent):
        with pytest.raises(RefusedError, match=r"your own|plain file"):
            Entropy.open(other)
    path.parent.chmod(0o777)
    for door in (lambda: Entropy.open(path), lambda: Entropy.create(path.with_name("new"))):
        with pytest.raises(RefusedError, match="chmod 700"):
            door()
    path.parent.chmod(0o700)
    assert Entropy.open(path).commitment == entropy.commitment


def test_destroyed_is_gone_from_the_disk_too(path: Path) -> None:
    """A second name of the file shows what was in it when it was removed. Mutants: unlink only; the key kept."""
    entropy = Entropy.create(path)
    stays = path.with_name("stays")
    os.link(path, stays)
    entropy.destroy()
    assert not path.exists() and stays.read_bytes() == bytes(32)
    with pytest.raises(RefusedError, match="was destroyed"):
        entropy.keystream("noise")
    with pytest.raises(RefusedError, match="was destroyed"):
        _ = entropy.commitment
    with pytest.raises(RefusedError, match="was destroyed"):
        Entropy.open(stays)  # what a kill between the two leaves
    destroy_key(stays)
    destroy_key(stays)
    assert not stays.exists()


@dataclass
class Holder:
    entropy: Entropy
    stream: Keystream


def _shown(secret: Any) -> str:
    """Everything that a program says of an object in logs, errors and reports."""
    log = io.StringIO()
    logger = logging.Logger("shown")
    logger.addHandler(logging.StreamHandler(log))
    logger.error("%s %r %s", secret, secret, [secret])
    try:
        raise ValueError(secret)
    except ValueError as error:
        text = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    return log.getvalue() + text + f"{secret} {secret!r}" + pprint.pformat({"secret": secret}) + str(dir(secret))


def test_the_key_is_never_shown_or_copied(path: Path) -> None:
    """Mutants: a dataclass instead of the class (repr, vars, asdict), no __reduce_ex__, no __slots__."""
    entropy = Entropy.create(path)
    key = path.read_bytes()
    stream = entropy.keystream("noise")
    derived = stream._key
    for secret in (entropy, stream):
        shown = _shown(secret)
        for raw in (key, derived, bytearray(key)):
            for face in (repr(raw), repr(raw)[2:-1], raw.hex(), str(list(raw)), str(int.from_bytes(raw, "big"))):
                assert face not in shown
        with pytest.raises(TypeError):
            vars(secret)
        with pytest.raises(TypeError):
            json.dumps(secret)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(RefusedError, match="never copied or pickled"):
                pickle.dumps({"in": [secret]}, protocol)
        for copied in (copy.copy, copy.deepcopy, lambda it: it.__getstate__(), lambda it: it.__reduce__()):
            with pytest.raises(RefusedError, match="never copied or pickled"):
                copied(secret)
    with pytest.raises(RefusedError, match="never copied or pickled"):
        asdict(Holder(entropy, stream))


_shared: dict[str, Any] = {}


def _child(number: int) -> tuple[str, str, str]:
    """Heads of a common purpose and of its own; what the stream of the parent says."""
    entropy = _shared["entropy"]
    common = rounded_head(entropy.keystream("noise", 1))
    own = rounded_head(entropy.keystream("noise", 1, number))
    try:
        _shared["stream"].read(8)
    except RefusedError as error:
        return common, own, str(error)
    return common, own, "went on"


def rounded_head(stream: Keystream) -> str:
    return hashlib.sha256(stream.read(1000)).hexdigest()


@pytest.mark.slow
def test_forks_share_purposes_and_nothing_else(path: Path) -> None:
    """Mutants: a buffer in the Entropy that a fork duplicates; no process check in the stream."""
    _shared.update(entropy=Entropy.create(path))
    _shared.update(stream=_shared["entropy"].keystream("parent"))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.map(_child, range(3), chunksize=1)
    assert {common for common, _, _ in found} == {rounded_head(_shared["entropy"].keystream("noise", 1))}
    assert len({own for _, own, _ in found}) == 3
    assert all("copied by a fork" in said for _, _, said in found)
    assert len(_shared["stream"].read(8)) == 8
