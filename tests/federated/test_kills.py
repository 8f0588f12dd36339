"""``kill -9`` of nodes and of the centre: the same bits as undisturbed, every node charged once, no second release.

Keys are drawn at random, so two runs never agree. A run is therefore stopped after its first step, copied with all of
its nodes, and ended twice: in peace, and under kills.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from npmdask.api import solve
from npmdask.config import load_config
from npmdask.core.storage.bundle import read_bundle
from npmdask.errors import LostError
from npmdask.ledger import open_ledger
from tests.conftest import often
from tests.federated.conftest import Site, Sites, centre_file, environment, records

SIZES = {4: (2, 12), 12: (3, 24)}  # nodes and steps, by how many are killed


class Centre:
    """The process of a centre, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def store(self) -> Path:
        return self.folder / "runs" / "centre"

    def start(self) -> None:
        command = [sys.executable, "-m", "npmdask.cli.main", "run", "centre.toml", "--quiet"]
        with open(self.folder / "err", "a") as err:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment(), stdout=err, stderr=err)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(240)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(600)

    def released(self) -> int:
        return len(list((self.store / "steps").glob("000*")))


def put_back(folders: list[Path], saved: Path) -> None:
    """Everything as it was when it was saved, in the same place: a job belongs to its ledger, by its path too."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(saved / folder.name, folder)


def outcome(sites: list[Site], centre: Centre, steps: int) -> list[np.ndarray]:
    """Every number that was released or made of it."""
    arrays = list(read_bundle(centre.store / "result")[0].values())
    for site in sites:
        (job,) = (site.folder / "runs" / "node" / "jobs").iterdir()
        found = sorted((job / "releases").iterdir())
        assert len(found) == steps and not (job / "entropy").exists()
        arrays += [array for path in found for array in read_bundle(path)[0].values()]
    return arrays


def require_charged_once(site: Site, steps: int) -> None:
    ledger = open_ledger(site.folder / "ledger.sqlite")
    (run,) = ledger.status("here").runs
    entries = [entry.kind for entry in ledger.entries()]
    assert entries.count("reserve") == 1 and len(run.committed) == steps
    assert ledger.status("here").spent_epsilon <= 4.0


def disturb(sites: list[Site], centre: Centre, kills: int, rng: random.Random) -> dict[str, int]:
    """End the run under kills of random victims at random instants; who was killed how often."""
    done = {"centre": 0, "node": 0}
    centre.start()
    for number in range(kills):
        # On a fast machine the run does not end before centre and a node were killed.
        until, most = time.monotonic() + rng.uniform(0.2, 1.2 if number < 2 else 2.2), 4 + 3 * number
        while time.monotonic() < until and (number >= 2 or centre.released() < most):
            time.sleep(0.005)
        victim = rng.choice([[centre], sites, [centre, *sites]][min(number, 2)])
        there = victim.process is not None and victim.process.poll() is None
        victim.kill()
        done["centre" if victim is centre else "node"] += there and not (centre.store / "result").exists()
        time.sleep(rng.uniform(0.0, 0.3))
        if victim is not centre:
            victim.start()
        if centre.process is not None and centre.process.poll() is not None:
            if (centre.store / "result").exists():
                break
            centre.start()
    if centre.wait() == -signal.SIGKILL:  # the last kill came after the result
        centre.start()
    code = centre.wait()
    assert code == 0, (code, (centre.folder / "err").read_text()[-2000:])
    return done


@pytest.mark.slow
@pytest.mark.parametrize("some", often([4, 12], 0))
def test_killed_at_random_instants_ends_in_the_same_bits(sites: Sites, tmp_path: Path, some: int) -> None:
    """Mutants: a release that is not kept before it is answered; noise from a new key; a step charged again."""
    count, steps = SIZES[some]
    parts = np.array_split(records(15_000 * count, 60, 9), count)
    nodes, centre = sites(parts, epsilon=4.0, p=4, steps=steps), Centre(tmp_path / "centre")
    centre_file(centre.folder, [node.url for node in nodes], patience=600)  # a node takes its time to start again
    folders, results = [*(node.folder for node in nodes), centre.folder], []
    stop_after_first_step(nodes, centre, folders, tmp_path / "saved")
    rng = random.Random(int(os.environ.get("NPMDASK_KILL_SEED", "3")))
    for kills in (0, some):
        for _ in range(10):
            put_back(folders, tmp_path / "saved")
            try:
                for node in nodes:
                    node.start()
                done = disturb(nodes, centre, kills, rng)
            finally:
                centre.kill()
                for node in nodes:
                    node.kill()
            if not kills or min(done.values()) > 0:
                break  # else the run was over before: others are killed at other instants
        results.append(outcome(nodes, centre, steps))
        for node in nodes:
            require_charged_once(node, steps)
    print(f"killed: {done}")
    assert min(done.values()) > 0
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


def stop_after_first_step(sites: list[Site], centre: Centre, folders: list[Path], saved: Path) -> None:
    """Leave in ``saved`` a run that is begun and not finished: where it was faster than the kill it begins again."""
    for site in sites:
        site.kill()
    for _ in range(20):
        shutil.rmtree(saved, ignore_errors=True)
        for folder in folders:
            shutil.copytree(folder, saved / folder.name)
        for site in sites:
            site.start()
        centre.start()
        end = time.monotonic() + 240
        while not centre.released():
            assert time.monotonic() < end, (centre.folder / "err").read_text()
            time.sleep(0.005)
        centre.kill()
        for site in sites:
            site.kill()
        if not (centre.store / "result").exists():
            break
        put_back(folders, saved)
    assert not (centre.store / "result").exists(), "it was faster than every kill: more data"
    shutil.rmtree(saved)
    for folder in folders:
        shutil.copytree(folder, saved / folder.name)


@pytest.mark.slow
def test_a_node_that_stays_away_ends_the_run_which_goes_on_later(sites: Sites, tmp_path: Path) -> None:
    """Mutants: patience without an end; an error that is no exit code 130; a node asked for a new job."""
    made = sites(np.array_split(records(300, 20), 2), epsilon=2.0, steps=2)
    file = centre_file(tmp_path / "centre", [site.url for site in made], patience=3.0)
    made[1].kill()
    with pytest.raises(LostError, match="is away") as caught:
        load_config(file).solve()
    assert caught.value.exit_code == 130 and made[1].url in str(caught.value)
    made[1].start()
    problem = load_config(file).problem()
    made[1].kill()
    with pytest.raises(LostError, match="start it again"):
        solve(problem, load_config(file).run.store, load_config(file).resources())
    end = time.monotonic() + 120  # it goes on with what it was asked for
    while not (runs := open_ledger(made[0].folder / "ledger.sqlite").status("here").runs) and time.monotonic() < end:
        time.sleep(0.05)
    assert len(runs) == 1, "the node that was there has released its part"
    made[1].start()
    file = centre_file(tmp_path / "centre", [site.url for site in made])  # patient: both are there
    assert load_config(file).solve().outcome.name == "released"
    for site in made:
        assert len(open_ledger(site.folder / "ledger.sqlite").status("here").runs) == 1
