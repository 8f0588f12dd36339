"""The main job, ``make run``: 4 GiB of data with a planted truth, its ten leading directions within 1 GiB of memory;
and topics of real text, on a page that the report links.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

from npmdask.config import load_config
from npmdask.core.runs.progress import IngestBar
from npmdask.errors import RefusedError
from npmdask.manage.report import write_report
from npmdask.prefect.power_method import npm
from npmdask.prefect.programs import exit_code, say
from npmdask.prefect.server import ROOT, local_server
from npmdask.prefect.staged_runs import topics
from npmdask.synthetic import generate
from npmdask.topics.documents import documentation_corpus, documents_of, write_documents

CONFIG = ROOT / "data" / "main-job.toml"
ROWS, COLUMNS, RANK = 524288, 2048, 10  # 4 GiB of float32
PROBLEM: dict[str, Any] = {
    "problem": "spectrum",
    "kind": "samples",
    "spectrum": "harmonic",
}  # sigma_i = 1 / sqrt(i): slow
DISK = 5 * 2**30  # the data and a little more
WORST_ANGLE = 1e-3
TOPICS = 20
SHARED = ROOT.parent / "shared" / "data"


def ensure_data(path: Path) -> None:
    """Make the data unless they are there, whole; half made ones are gone on with."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    written = sum(f.stat().st_size for f in partial.rglob("*") if f.is_file())
    free = shutil.disk_usage(path.parent).free
    if free + written < DISK:
        has = f"{path.parent} has {free / 2**30:.1f} GiB free"
        raise RefusedError(f"the main job needs 5 GiB of disk and {has}: free some")
    generate(path, rows=ROWS, columns=COLUMNS, rank=RANK, progress=IngestBar("generate"), **PROBLEM)


def verdict(facts: dict[str, Any]) -> int:
    """Print what the job promises beside what it did; 0 if it was kept."""
    angle, peak, limit = facts["max_sin_theta"], facts["peak_rss_bytes"], facts["memory_limit_bytes"]
    kept = facts["converged"] and angle is not None and angle <= WORST_ANGLE and peak < limit
    print(f"{'max sin(theta)':16} {angle:.2e} (at most {WORST_ANGLE:.0e})" if angle is not None else "no planted truth")
    print(f"{'peak memory':16} {peak / 2**20:.0f} MiB of {limit / 2**20:.0f} MiB, all processes together")
    print(f"{'steps':16} {facts['steps']}")
    print(f"{'data passes':16} {facts['data_passes']} now, {facts['total_data_passes']} in all")
    print(f"{'seconds':16} {facts['seconds']:.1f}")
    print(f"{'report':16} {Path(facts['store'], 'report.html').resolve()}")
    print("kept" if kept else "NOT KEPT")
    return 0 if kept else 1


def run() -> int:
    """Data, flow, verdict."""
    ensure_data(ROOT / "data" / "generated" / "main.zarr")
    config = load_config(CONFIG)
    with local_server() as url:
        say(f"Prefect at {url.removesuffix('/api')}")
        facts: Any = npm(config, run_id="main")
        page = topics_page()
    write_report(facts["store"], links={"Topics of real text, found by the tensor power method": page})
    print(f"{'topics':16} {page}")
    return verdict(facts)


def topics_page() -> Path:
    """The page of the topics of real text: papers where they lie beside the project, else documentation."""
    papers, words = SHARED / "nips-docword.txt.gz", SHARED / "nips-vocab.txt"
    folder = str(ROOT / "runs")
    if papers.exists():
        facts: Any = topics(str(papers), TOPICS, str(words), run_id="main-topics", folder=folder)
    else:
        facts = topics(str(documentation()), TOPICS, alpha0=0.0, run_id="main-topics", folder=folder)
    return Path(facts["store"], "report.html")


def documentation() -> Path:
    """The docstrings of the packages that are installed here, as counts of words; read once."""
    path = ROOT / "data" / "generated" / "documentation.zarr"
    if not path.exists():
        corpus = documentation_corpus()
        write_documents(documents_of(corpus.counts), path, corpus.vocabulary)
    return path


if __name__ == "__main__":
    sys.exit(exit_code(run))
