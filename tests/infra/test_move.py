"""The codemod that moved every file: what names a module is rewritten, once, and nothing else is."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from infra.move import TABLE, Moves, climbing, dotted, main

MOVES = Moves(tomllib.loads(TABLE.read_text()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import npmdask.runs.gram_store\n", "import npmdask.stored_gram.store\n"),
        (
            "from npmdask.runs import loop, gram_store\n",
            "from npmdask.core.runs import loop\nfrom npmdask.stored_gram import store as gram_store\n",
        ),
        ("from npmdask.numerics import random as r  # why\n", "from npmdask.core.numerics import random as r  # why\n"),
        ("from npmdask.privacy import account\n", "from npmdask.privacy import account\n"),
        ('run("from npmdask.storage import ingest")\n', 'run("from npmdask.formats import ingest")\n'),
        ('patch("npmdask.runs.loop.solve")\n', 'patch("npmdask.core.runs.loop.solve")\n'),
        ("# see npmdask/storage/writers/packed.py\n", "# see npmdask/symmetric/writer.py\n"),
        ('"$HOME/npmdask/runs.json", "/srv/npmdask/runs"\n', '"$HOME/npmdask/runs.json", "/srv/npmdask/runs"\n'),
        ("import npmdask\nnpmdask.gram(x)\n", "import npmdask\nnpmdask.gram(x)\n"),
    ],
)
def test_what_names_a_module_is_rewritten_once(old: str, new: str) -> None:
    assert MOVES.program(old) == new
    assert MOVES.program(new) == new


def test_no_file_goes_where_another_was_and_all_are_there() -> None:
    assert not {*MOVES.files} & {*MOVES.files.values()}
    root = TABLE.parents[1]
    assert not [
        old
        for old in MOVES.files
        if (root / old).exists() and not old.startswith(("npmdask/runs/", "npmdask/storage/"))
    ]
    assert dotted("npmdask/core/__init__.py") == "npmdask.core" and dotted("npmdask/api.py") == "npmdask.api"
    assert climbing("Path(__file__).resolve().parents[2]", 1) == "Path(__file__).resolve().parents[3]"


def test_a_checkout_is_moved_and_moved_only_once(tmp_path: Path) -> None:
    (tmp_path / "npmdask/runs").mkdir(parents=True)
    (tmp_path / "npmdask/runs/loop.py").write_text("from npmdask.runs.build import solve\n")
    (tmp_path / "user.py").write_text("from npmdask.models.pca import PCA\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    for _ in range(2):
        main(tmp_path)
        assert (tmp_path / "npmdask/core/runs/loop.py").read_text() == "from npmdask.core.runs.build import solve\n"
        assert (tmp_path / "user.py").read_text() == "from npmdask.estimators.pca import PCA\n"
        assert not (tmp_path / "npmdask/runs/loop.py").exists()
