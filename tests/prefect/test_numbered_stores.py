"""Which store a tick takes, without a server."""

from pathlib import Path

import pytest

from npmdask.errors import BudgetError, CommitError, FencedOutError, HeldError, LostError

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


def test_what_prefect_hears_of_an_error() -> None:
    from npmdask.prefect.redaction import WithheldError, said_discreetly

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
    from npmdask.prefect.redaction import withheld

    for error in (LostError("s3://b/4507"), CommitError("4507"), FencedOutError("4507"), HeldError("4507", "run-1")):
        found = withheld(error)
        assert isinstance(found, type(error)) and found.exit_code == error.exit_code
        assert "4507" not in str(found) + repr(found) and type(error).__name__ in str(found)
    assert isinstance(found, HeldError) and found.owner == "run-1"
