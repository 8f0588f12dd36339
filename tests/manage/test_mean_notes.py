"""The note on a mean that is found stays with the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.formats.ingest import ingest
from npmdask.manage.report import report_of
from tests.advice.test_mean_notes import rows_of


@pytest.mark.slow
def test_the_note_stays_with_the_run(tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", rows_of(0.97))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    configuration = tmp_path / "c.toml"
    configuration.write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\nkind = "matrix"\n[algorithm]\nname = "krylov"\ntarget_rank = 2\n'
        f'[run]\nstore = "{tmp_path}/run"\n'
    )
    said = "component 1 is nearly the mean of the columns"
    assert main(["plan", str(configuration)]) == 0
    assert "component 1 will be nearly the mean of the columns" in capsys.readouterr().out
    assert main(["run", str(configuration), "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert said in err
    assert any(said in text for text in json.loads(out)["warnings"])
    assert any(said in text for text in npmdask.resume(tmp_path / "run").warnings)
    assert said in repr(report_of(tmp_path / "run"))
