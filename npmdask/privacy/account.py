"""The account of a private run: its budget in the ledger, the key of its noise, and the digests of its releases.

For a step the order is::

    begin in the ledger (flushed to disk)  ->  one pass  ->  noise, from the secret key  ->  digest in the ledger
    ->  commit in the store  ->  only now is anything shown

The noise is a function of the key and of everything public about the release. A step that a crash undid is therefore
done again bit for bit: the ledger holds it to the digest of the first time, and the product that was released twice is
the same release. Nothing is refunded, and a run whose key is gone is refused, since fresh noise on the same product
would be a second release of it.

The key is bound to the content of the data, which the pass has compared with its SHA-256, and to what a public rule
makes of them: other data never get the same noise, whatever was put back from a backup. Beside the key the run keeps
where the ledger was: one that is older than the run was put back, and has forgotten what was spent since.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from npmdask.core.checkpoint.reader import KEY
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.paths import read_facts
from npmdask.core.storage.source import Source
from npmdask.errors import BudgetError, NpmdaskError, RefusedError
from npmdask.privacy.mechanisms import Entropy, destroy_key
from npmdask.privacy.request import Privacy

if TYPE_CHECKING:
    from npmdask.ledger import Ledger, Run

PLACE = "ledger.json"  # beside it: the last entry of the ledger that this run has seen


def bound_to(fingerprint: str, event: dict[str, Any]) -> str:
    """Return what binds the key of a run: the fingerprint of the data and the public rule applied before clipping."""
    rule = event.get("public_rule")
    return f"{fingerprint} {json.dumps(rule, sort_keys=True)}" if rule else fingerprint


def release_id_of(store: RunStore) -> str:
    """The name of the run for ledgers and nodes: drawn once, kept in run.json before anything is charged."""
    spec = store.read_spec() or {}
    if "release_id" not in spec:
        spec = spec | {"release_id": uuid4().hex}
        store.write_spec(spec)
    return str(spec["release_id"])


def _ledger_of(privacy: Privacy) -> Ledger:
    from npmdask.ledger import default_address, open_ledger

    return open_ledger(privacy.ledger or default_address())


def same_ledger(one: str | None, other: str | None) -> bool:
    """Say whether two addresses (None: the default) name one ledger: a file by any path, a database by any spelling."""
    from npmdask.ledger import default_address
    from npmdask.ledger.database import find_database

    try:
        return len({find_database(address or default_address()).place for address in (one, other)}) == 1
    except NpmdaskError:  # one of them is no address, which opening it says
        return False


def budget_left(privacy: dict[str, Any], source: str) -> str:
    """Report in a sentence what the ledger has left for the data set of a run, or why that is unknown."""
    import npmdask.ledger.messages as words

    asked = Privacy(**privacy)
    try:
        status = _ledger_of(asked).status(asked.name_of(source))
    except NpmdaskError as error:
        return f"unknown: {error}"
    budget = status.grant.budget
    return (
        f"granted is {words.amount(budget)}; runs so far: {len(status.runs)}, which spent "
        f"{words.cost(status.spent, budget)}; one more may have {words.left(status.askable_epsilon)}"
    )


def require_room(privacy: Privacy, source: Source, mechanism: Any) -> None:
    """Check that the ledger covers one more run with this mechanism. Nothing is written.

    Raises
    ------
    BudgetError
        The budget of the data set does not suffice, the data changed since the grant, or there is none.
    """
    _ledger_of(privacy).require_covered(
        privacy.name_of(source.path),
        fingerprint=source.fingerprint,
        relation=mechanism.relation.spec(),
        charge=mechanism.charge(),
    )


class Account:
    """Account of one private run: charges the ledger, keeps the noise key, and destroys it once all is settled.

    Parameters
    ----------
    privacy : what was asked for: budget, ledger, name of the data set.
    source : the data, of which only the fingerprint and the name are used.
    mechanism : says what the whole run costs.
    store : of the run; the key lies in its folder (0600).
    """

    def __init__(self, privacy: Privacy, source: Source, mechanism: Any, store: RunStore) -> None:
        self._privacy, self._mechanism, self._store = privacy, mechanism, store
        self._dataset, self._where = privacy.name_of(source.path), source.path
        self._source, self._fingerprint = source, source.fingerprint
        self._bound_to = bound_to(source.fingerprint, mechanism.event())
        self._path = Path(store.path) / KEY
        self.entropy: Any = None  # the noise is a function of it; there once the account is open
        self._ledger: Ledger | None = None
        self._run_id = ""

    def reserve(self) -> Run:
        """Charge the whole run, or find it charged.

        Raises
        ------
        BudgetError
            The budget of the data set does not suffice, the data changed since the grant, or there is none.
        RefusedError
            The store of the data has no digests; or the ledger is older than the run.
        """
        self._require_digests()
        self._run_id, self._ledger = release_id_of(self._store), _ledger_of(self._privacy)
        self._require_current(self._ledger)
        begun = self._path.exists()  # and held to its own place in the ledger, whatever other runs noted since
        try:
            if not begun:
                self._ledger.require_noted(self._source.mark)
            run = self._ledger.reserve(
                self._dataset,
                run_id=self._run_id,
                fingerprint=self._fingerprint,
                relation=self._mechanism.relation.spec(),
                charge=self._mechanism.charge(),
                releases=self._mechanism.releases,
                event=self._mechanism.event(),
            )
        except BudgetError:
            self._unbind_if_new()
            raise
        self._save_ledger_position()
        if (
            self._source.mark is not None and not begun
        ):  # where it can be written, an older copy of the ledger will be noticed
            self._ledger.mark(self._source, self._dataset)
        return run

    def _require_digests(self) -> None:
        """A run that a version without digests began goes on as it began; no other begins without them."""
        if self._source.digests is None and not self._path.exists():
            raise RefusedError(
                f"{self._where} was ingested by a version that recorded no SHA-256 of its chunks, so changed data "
                "would go unnoticed: ingest it again (with the store itself as source), and grant the budget for "
                "the new store with `npmdask ledger grant --data-changed`, which keeps what is spent"
            )

    def _require_current(self, ledger: Ledger) -> None:
        """Refuse a ledger that does not hold what this run has seen in it: RefusedError."""
        place = self._path.with_name(PLACE)
        if place.exists():
            try:
                seen = read_facts(place)
                ledger.require_holds(int(seen["entries"]), str(seen["head"]))
            except (ValueError, TypeError) as error:
                said = "nothing says which ledger this run was charged to: restore it from a backup, or start a new run"
                raise RefusedError(f"{place} is damaged ({error}), so that {said}") from error

    def _save_ledger_position(self) -> None:
        """Remember how far the ledger was; after what was written to it, so that a kill leaves an older place."""
        assert self._ledger is not None
        entries, head = self._ledger.head()
        self._store.require_turn()
        write_file_atomically(
            self._path.with_name(PLACE), json.dumps({"entries": entries, "head": head}).encode(), mode=0o600
        )

    def _unbind_if_new(self) -> None:
        """A run that was refused before it began leaves its store free: for a smaller epsilon, or a larger grant."""
        if not self._path.exists() and self._store.last_step() is None:
            self._store.drop_spec()

    def open(self, history: list[dict[str, Any]]) -> None:
        """Charge the whole run, or find it charged; make the key, or find it.

        Raises
        ------
        BudgetError
            The budget of the data set does not suffice, the data changed since the grant, or there is none.
        RefusedError
            The key of a run that has begun is gone.
        """
        run = self.reserve()
        assert self._ledger is not None
        self.entropy = self._key(bool(history or run.begun))
        for step in history:  # a kill may have come between the digest and the commit, or a backup was put back
            self._ledger.commit(self._run_id, step["step"], step["digest"])

    def _key(self, begun: bool) -> Entropy:
        if self._path.exists():
            return Entropy.open(self._path, bound_to=self._bound_to)
        if begun:
            raise RefusedError(
                f"the secret key of the noise, {self._path}, is missing, and the run has begun: continuing with new "
                "noise would release the same products a second time. What the run reserved stays spent; start "
                "again in a new store, if the budget allows"
            )
        return Entropy.create(self._path, bound_to=self._bound_to)

    def begin(self, step: int) -> None:
        assert self._ledger is not None
        self._ledger.begin(self._run_id, step)
        self._save_ledger_position()

    def written(self, step: int, digest: str) -> None:
        """Commit the digest of what was released to the ledger, which holds the next run of this step to it."""
        assert self._ledger is not None
        self._ledger.commit(self._run_id, step, digest)
        self._save_ledger_position()

    def released(self, step: int, mechanism: Any, block: Block, released: Block) -> dict[str, Any]:
        """After the noise, before anything is kept; returns what the history of the run says of this release."""
        digest = hashlib.sha256(np.ascontiguousarray(released).tobytes()).hexdigest()
        self.written(step, digest)
        noise = mechanism.noise_stddev(block, rows=len(released))
        said = {"noise_stddev": noise, "image_norm": mechanism.image_norm}
        return {"digest": digest, **said, "release": mechanism.release_kind, "numbers": released.size}

    def settle(self) -> None:
        """Close the run in the ledger and destroy the key; after the commit of the answer, also in a later call."""
        if not self._path.exists() and self._ledger is None:
            return  # finished in an earlier call
        ledger = self._ledger or _ledger_of(self._privacy)
        self._require_current(ledger)
        ledger.finish(release_id_of(self._store))
        destroy_key(self._path)
