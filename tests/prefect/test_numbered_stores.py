"""Which store a tick takes, without a server."""

import shutil
from pathlib import Path

import pytest

from npmdask.errors import BudgetError, CommitError, FencedOutError, HeldError, LostError, RefusedError

pytestmark = pytest.mark.filterwarnings("default")  # of Prefect's own


def numbered(home: Path, name: str, *parts: str) -> Path:
    store = home / name
    (store / "steps").mkdir(parents=True)
    for part in parts:
        (store / part).write_text("")
    return store


def test_a_tick_takes_the_unfinished_store_or_the_next_number(tmp_path: Path) -> None:
    from npmdask.prefect.parameters import next_store

    home = tmp_path / "daily"
    assert next_store(home) == str(home / "000001")
    assert home.stat().st_mode & 0o777 == 0o700
    first = numbered(home, "000001")
    assert next_store(home) == str(first), "begun"
    (first / "result").mkdir()
    assert next_store(home) == str(home / "000002")
    (first / "entropy").write_text("")
    assert next_store(home) == str(first), "killed before its key was destroyed: that is still to be done"
    (first / "entropy").unlink()
    (home / "notes").write_text("")
    numbered(home, "000009", "result")
    assert next_store(home) == str(home / "000010")


@pytest.mark.slow
def test_a_tick_follows_the_run_before_it_as_that_was_shown(tmp_path: Path) -> None:
    """Of data that change every night. Fails where a tick follows nothing, itself, or a run without an answer, or where
    one that was killed on other data keeps all later ones from running."""
    import numpy as np

    from npmdask.manage.report import export
    from npmdask.prefect import configuration
    from npmdask.prefect.parameters import numbered as numbered_run

    simple = np.kron(np.eye(3), np.ones((4, 1)))

    def data(seed: int, sizes: list[float]) -> None:
        rng = np.random.default_rng(seed)
        rows = rng.standard_normal((500, 3)) * sizes @ simple.T + 0.3 * rng.standard_normal((500, 12))
        np.save(tmp_path / "rows.npy", rows)

    options = {"kind": "samples", "center": True, "store": str(tmp_path / "nightly")}
    asked = configuration(str(tmp_path / "rows.npy"), 3, **options)
    shown, followed = [], []
    for seed, sizes in enumerate(([2.0, 1.4, 1.0], [1.0, 2.0, 1.4], [1.4, 1.0, 2.0])):
        data(seed, sizes)
        tick = numbered_run(asked, "nightly", follows=True)
        assert tick.run.store == str(tmp_path / "nightly" / f"{seed + 1:06d}")
        followed.append(tick.report.align_to)
        tick.solve()
        export(str(tick.run.store), tmp_path / "out.npz")
        with np.load(tmp_path / "out.npz") as held:
            shown.append(held["basis"])
    assert followed == [None, *(str(tmp_path / "nightly" / f"00000{n}") for n in (1, 2))]
    assert all((np.einsum("ij,ij->j", one, shown[0]) > 0.9).all() for one in shown[1:])

    data(8, [1.0, 2.0, 1.4])
    left = numbered_run(asked, "nightly", follows=True).run.store
    limited = {"algorithm.name": "power", "algorithm.max_steps": 1, "algorithm.iteration_rank": 3}
    configuration(str(tmp_path / "rows.npy"), 3, **options | {"store": left}, changes=limited).solve()
    data(9, [1.0, 2.0, 1.4])
    tick = numbered_run(asked, "nightly", follows=True)
    assert Path(str(tick.run.store)).name == "000005"
    assert tick.report.align_to == str(tmp_path / "nightly" / "000003"), "the fourth gave up"
    (tmp_path / "nightly" / "000005").mkdir()
    shutil.copy(tmp_path / "nightly" / "000004" / "run.json", tmp_path / "nightly" / "000005")
    assert Path(str(numbered_run(asked, "nightly").run.store)).name == "000006", "begun on other data"
    with pytest.raises(RefusedError, match="leave fresh out"):
        numbered_run(configuration(str(tmp_path / "rows.npy"), 3, store="s3://bucket/nightly"), "nightly")


def test_what_prefect_hears_of_an_error() -> None:
    from npmdask.prefect.private_release import WithheldError, said_discreetly

    def heard(error: Exception) -> tuple[str, str, int]:
        @said_discreetly
        def fail() -> None:
            raise error

        state = fail()
        return state.message, repr(state.data), state.data.exit_code

    message, data, code = heard(ValueError("4507 rows"))
    assert "4507" not in message + data and code == 1 and "ValueError" in message
    message, data, code = heard(BudgetError("spent"))
    assert (message, code) == ("spent", 3)
    withheld = WithheldError(FileNotFoundError("/a/b"))
    assert heard(withheld)[0] == str(withheld) and "/a/b" not in str(withheld)


def test_what_is_withheld_still_says_how_the_run_ends() -> None:
    """Fails when a lost cluster or a store that another process has looks like any error: the keeper starts the first
    again, and leaves the second alone."""
    from npmdask.prefect.private_release import withheld

    for error in (LostError("s3://b/4507"), CommitError("4507"), FencedOutError("4507"), HeldError("4507", "run-1")):
        found = withheld(error)
        assert isinstance(found, type(error)) and found.exit_code == error.exit_code
        assert "4507" not in str(found) + repr(found) and type(error).__name__ in str(found)
    assert isinstance(found, HeldError) and found.owner == "run-1"
