"""Jobs of several stages (topics, mixtures, independent components, two fields) as flows, and their steps as tasks.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow. Nor are those
that all have (seed, memory, threads, ...) put into a decorator or an object of their own: of an entrypoint Prefect
(3.8.8) reads the source of a flow, and shows only what its signature and docstring spell out.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from prefect import get_run_logger

from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.runs.solution import Step
from npmdask.latent.answers import fit_latent
from npmdask.manage.report import summary
from npmdask.prefect.heartbeat import require_progress
from npmdask.prefect.parameters import (
    Folder,
    Memory,
    Restarts,
    RunId,
    Seed,
    Threads,
    Workers,
    last_part,
    run_folder,
    said,
)
from npmdask.prefect.publish import LivePublisher, ending_text
from npmdask.prefect.tasks import reported, step, tended_flow
from npmdask.topics.documents import documents_of
from npmdask.topics.run import CorpusFilter, run_topics
from npmdask.two_fields.answers import fit_coupled


@tended_flow("Topics of documents, out of core.")
def topics(
    documents: Annotated[str, said("word counts: a file or a store")],
    count: Annotated[int, said("number of topics", ge=1)],
    vocabulary: Annotated[str | None, said("a file with one word a line")] = None,
    alpha0: Annotated[float, said("sum of the Dirichlet parameters; 0: one topic per document", ge=0)] = 1.0,
    half_length: Annotated[float, said("weight a document of N words by N / (N + this)", ge=0)] = 100.0,
    min_df: Annotated[int, said("leave out words in fewer documents than this", ge=1)] = 1,
    max_df: Annotated[float, said("leave out words in a larger fraction of documents", gt=0, le=1)] = 1.0,
    held_out: Annotated[float, said("fraction of documents held out for the perplexity; 0: none", ge=0, le=0.5)] = 0.1,
    moments: Annotated[Literal["held", "implicit"], said("held in memory, or implicit: one pass per product")] = "held",
    restarts: Restarts = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "topics",
    folder: Folder = "runs",
) -> Any:
    """
    Find topics of documents, out of core.

    The same run id again goes on after a kill, or returns the answer.

    Parameters
    ----------
    documents : str
        Counts of words: a file or a store.
    count : int
        How many topics.
    vocabulary : str, optional
        A file with a word on each line.
    alpha0 : float, default 1.0
        Sum of the Dirichlet parameters of a document; 0: one topic each.
    half_length : float, default 100.0
        A document of N words counts N / (N + this).
    min_df : int, default 1
        Leave out words in fewer documents.
    max_df : float, default 1.0
        Leave out words in more than this share of the documents.
    held_out : float, default 0.1
        Share of documents for the perplexity; 0: none.
    moments : {"held", "implicit"}, default "held"
        "implicit": a pass for each product.
    restarts : int, optional
        Random starts of the tensor power method; by the rank if left out.
    seed : int, default 0
        Of everything that is drawn.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    threads : int, optional
        Threads of each process; all cores if left out.
    workers : int, default 0
        Processes; 0: threads of one process.
    run_id : str, default "topics"
        Name of the run, and of its folder.
    folder : str, default "runs"
        Where that folder is made.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings: "values", "store", "outcome", ... No array goes through
        Prefect: the answer is in the store.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import topics
    >>> @flow
    ... def nightly():
    ...     return topics("docword.txt.gz", 20, "vocab.txt", memory="1GiB", run_id="news")["store"]
    """
    store = run_folder(folder, run_id)
    cut = CorpusFilter(held_out=held_out, min_df=min_df, max_df=max_df)
    asked = {"alpha0": alpha0, "half_length": half_length, "moments": moments, "restarts": restarts, "seed": seed}
    look(documents)
    means: dict[str, Any] = {"memory": memory, "threads": threads, "workers": workers}
    facts = find_topics(documents, count, vocabulary, store=store, run_id=run_id, cut=cut, **means, **asked)
    return reported(run_id, facts)


@tended_flow("A mixture of spherical Gaussians, or independent components, out of core.")
def latent(
    kind: Annotated[Literal["mixture", "ica"], said("mixture of spherical Gaussians, or independent components (ICA)")],
    samples: Annotated[str, said("a Zarr store of rows of numbers")],
    count: Annotated[int, said("number of components", ge=1)],
    restarts: Restarts = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "latent",
    folder: Folder = "runs",
    refine: Annotated[int | None, said("most passes of EM or FastICA after the moments", ge=0)] = None,
) -> Any:
    """
    Find a mixture of spherical Gaussians, or independent components, out of core.

    The same run id again goes on after a kill, or returns the answer.

    Parameters
    ----------
    kind : {"mixture", "ica"}
        Spherical Gaussians, or independent components.
    samples : str
        A Zarr store of rows of numbers.
    count : int
        How many components.
    restarts : int, optional
        Random starts of the tensor power method; by the rank if left out.
    seed : int, default 0
        Of everything that is drawn.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    threads : int, optional
        Threads of each process; all cores if left out.
    workers : int, default 0
        Processes; 0: threads of one process.
    run_id : str, default "latent"
        Name of the run, and of its folder.
    folder : str, default "runs"
        Where that folder is made.
    refine : int, optional
        Most passes of EM or FastICA after the moments; 3 if left out, 0 for the moments alone.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings: "values", "store", "outcome", ... No array goes through
        Prefect: the answer is in the store.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import latent
    >>> @flow
    ... def nightly():
    ...     return latent("mixture", "points.zarr", 3, run_id="points")["store"]
    """
    store = run_folder(folder, run_id)
    asked = {"restarts": restarts, "seed": seed, "refine": refine}
    means: dict[str, Any] = {"memory": memory, "threads": threads, "workers": workers}
    facts = find_components(kind, samples, count, store=store, run_id=run_id, **means, **asked)
    return reported(run_id, facts)


@tended_flow("What two fields have in common: maximum covariance or canonical correlations, out of core.")
def two_fields(
    kind: Annotated[Literal["mca", "cca"], said("mca: largest covariance; cca: largest correlation")],
    left: Annotated[str, said("first field, dense rows: a Zarr store, a URL or a file")],
    right: Annotated[str, said("second field, with the same rows")],
    count: Annotated[int, said("number of modes", ge=1)],
    center: Annotated[bool, said("subtract the column means")] = True,
    scale: Annotated[bool, said("divide columns by their standard deviations")] = False,
    missing: Annotated[Literal["refuse", "drop-columns", "mean"], said("treatment of missing values")] = "refuse",
    pcs: Annotated[list[int] | None, said("cca: principal components to keep of each field")] = None,
    ridge: Annotated[float, said("cca: ridge, as a multiple of the mean variance of a column", ge=0)] = 0.0,
    dim: Annotated[list[str] | None, said("dimension that holds the rows, one name for each field")] = None,
    row_weights: Annotated[str | None, said("weight of each row: a file, or a coordinate of the first field")] = None,
    left_weights: Annotated[
        str | None, said("weight of each column of the first field: a file, a coordinate, or coslat")
    ] = None,
    right_weights: Annotated[str | None, said("weight of each column of the second field, given likewise")] = None,
    tol: Annotated[float | None, said("stop at this relative residual", gt=0, lt=1)] = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "two-fields",
    folder: Folder = "runs",
) -> Any:
    """
    Find what two fields have in common, out of core.

    The same run id again goes on after a kill, or returns the answer.

    Parameters
    ----------
    kind : {"mca", "cca"}
        Largest covariance, or largest correlation.
    left : str
        Dense rows: a Zarr store, a URL or a file.
    right : str
        The same rows of another field.
    count : int
        How many modes.
    center : bool, default True
        Take off the column means.
    scale : bool, default False
        Divide columns by their standard deviations.
    missing : {"refuse", "drop-columns", "mean"}, default "refuse"
        What is done with values that are NaN.
    pcs : list of int, optional
        Of canonical correlations: how many leading components represent the left and the right field.
    ridge : float, default 0.0
        Of canonical correlations: so many times the mean variance of a column is added.
    dim : list of str, optional
        The dimension of the rows of a grid: of the left and of the right field.
    row_weights : str, optional
        A file, or a coordinate of the left field.
    left_weights : str, optional
        Of the columns: a file, a coordinate, or coslat.
    right_weights : str, optional
        The same of the right field.
    tol : float, optional
        Relative residual to reach.
    seed : int, default 0
        Of everything that is drawn.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    threads : int, optional
        Threads of each process; all cores if left out.
    workers : int, default 0
        Processes; 0: threads of one process.
    run_id : str, default "two-fields"
        Name of the run, and of its folder.
    folder : str, default "runs"
        Where that folder is made.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings: "values", "store", "outcome", ... No array goes through
        Prefect: the answer is in the store.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import two_fields
    >>> @flow
    ... def nightly():
    ...     return two_fields("mca", "sst.zarr", "rain.zarr", 10, memory="1GiB", run_id="coupled")["store"]
    """
    store = run_folder(folder, run_id)
    asked: dict[str, Any] = {"center": center, "scale": scale, "missing": missing, "tol": tol, "seed": seed}
    asked |= {"pcs": pcs, "ridge": ridge, "dim": dim}
    asked |= {"row_weights": row_weights, "left_weights": left_weights, "right_weights": right_weights}
    means: dict[str, Any] = {"memory": memory, "threads": threads, "workers": workers}
    facts = find_modes(kind, left, right, count, store=store, run_id=run_id, **means, **asked)
    return reported(run_id, facts)


@step
def look(documents: str) -> dict[str, Any]:
    """
    Open a corpus; nothing is read but its head.

    A task of Prefect, for a flow of yours; the first step of :func:`topics`.

    Parameters
    ----------
    documents : str
        Counts of words: a file or a store.

    Returns
    -------
    dict
        "documents" and "words": how many.

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import look
    >>> @flow
    ... def how_many():
    ...     return look("docword.txt.gz")["documents"]
    """
    found = documents_of(documents)
    facts = {"documents": found.rows, "words": found.columns}
    get_run_logger().info("%s: %s", documents, facts)
    return facts


class StagePublisher(LivePublisher):
    """Shows which stage of a job is under way, and its steps. ``stages``: how many there are, told or not."""

    def __init__(self, name: str, stages: int) -> None:
        super().__init__(name)
        self._stages, self._begun, self._label = stages, 0, "starting"
        self._advance("starting", 0.0)

    def on_stage(self, label: str) -> None:
        self._begun, self._label = self._begun + 1, label
        self._log.info(label)
        self._advance(label, self._percent)

    def on_step(self, step: Step) -> None:
        self._submit_if_due(self._advance_if_due, f"{self._label}; step {step.number}", self._percent)

    @property
    def _percent(self) -> float:
        """Percentage of stages that are done: the number of steps of one is known only at its end."""
        return min(99.0, 100 * max(self._begun - 1, 0) / self._stages)

    def close(self, said: str) -> None:
        """The job is at its end."""
        self._thread.shutdown()
        self._advance(ending_text(said, ""), 100.0)


def _run_job(job: Callable[..., Any], stages: int, store: str, run_id: str | None, *means: Any) -> dict[str, Any]:
    """Run a job of so many ``stages``, from wherever its store is, with the resources that it is given here."""
    shown = StagePublisher(run_id or last_part(store), stages)
    require_progress(store)
    resources = asked_resources(*means)
    with with_progress(shown, True) as told:
        answer = job(store=store, resources=resources, observer=told)
    shown.close(answer.outcome.sentence)
    return summary(answer) | {"answered": answer.answered}


@step
def find_topics(
    documents: str,
    count: int,
    vocabulary: str | None = None,
    *,
    store: str,
    run_id: str | None = None,
    cut: CorpusFilter | None = None,
    memory: str | None = None,
    threads: int | None = None,
    workers: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """
    Find topics of documents: every stage of the job, from wherever its store is. No array leaves it.

    A task of Prefect, for a flow of yours. Called again with the same store it goes on, or returns the answer.

    Parameters
    ----------
    documents : str
        Counts of words: a file or a store.
    count : int
        How many topics.
    vocabulary : str, optional
        A file with a word on each line.
    store : str
        Folder or URL of the run.
    run_id : str, optional
        Name of the run in Prefect's artifacts; that of its store if left out.
    cut : CorpusFilter, optional
        Which words and documents count; all words, and a tenth of the documents held out, if left out.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    threads : int, optional
        Threads of each process; all cores if left out.
    workers : int, default 0
        Processes; 0: threads of one process.
    **options : Any
        ``alpha0``, ``half_length``, ``moments``, ``restarts``, ``seed``, as :func:`topics` takes them.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings: "store", "outcome", "answered", ...

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import find_topics, report
    >>> @flow
    ... def news():
    ...     report("news", find_topics("docword.txt.gz", 20, "vocab.txt", store="runs/news", memory="1GiB"))
    """
    job = partial(run_topics, documents, count, vocabulary, cut=cut or CorpusFilter(), **options)
    return _run_job(job, 3, store, run_id, memory, threads, workers)


@step
def find_components(
    kind: str,
    samples: str,
    count: int,
    *,
    store: str,
    run_id: str | None = None,
    memory: str | None = None,
    threads: int | None = None,
    workers: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """
    Find a mixture or independent components: every stage, from wherever the store is. No array leaves it.

    A task of Prefect, for a flow of yours. Called again with the same store it goes on, or returns the answer.

    Parameters
    ----------
    kind : {"mixture", "ica"}
        Spherical Gaussians, or independent components.
    samples : str
        A Zarr store of rows of numbers.
    count : int
        How many components.
    store : str
        Folder or URL of the run.
    run_id : str, optional
        Name of the run in Prefect's artifacts; that of its store if left out.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    threads : int, optional
        Threads of each process; all cores if left out.
    workers : int, default 0
        Processes; 0: threads of one process.
    **options : Any
        ``restarts``, ``seed`` and ``refine``, as :func:`latent` takes them.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings: "store", "outcome", "answered", ...

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import find_components, report
    >>> @flow
    ... def points():
    ...     report("points", find_components("mixture", "points.zarr", 3, store="runs/points"))
    """
    job = partial(fit_latent, kind, samples, count, **options)
    return _run_job(job, 2, store, run_id, memory, threads, workers)


@step
def find_modes(
    kind: str,
    left: str,
    right: str,
    count: int,
    *,
    store: str,
    run_id: str | None = None,
    memory: str | None = None,
    threads: int | None = None,
    workers: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """
    Find coupled modes of two fields: every stage, from wherever the store is. No array leaves it.

    A task of Prefect, for a flow of yours. Called again with the same store it goes on, or returns the answer.

    Parameters
    ----------
    kind : {"mca", "cca"}
        Largest covariance, or largest correlation.
    left : str
        Dense rows: a Zarr store, a URL or a file.
    right : str
        The same rows of another field.
    count : int
        How many modes.
    store : str
        Folder or URL of the run.
    run_id : str, optional
        Name of the run in Prefect's artifacts; that of its store if left out.
    memory : str, optional
        Limit for all processes of the run together, like "1GiB".
    threads : int, optional
        Threads of each process; all cores if left out.
    workers : int, default 0
        Processes; 0: threads of one process.
    **options : Any
        All other parameters of :func:`two_fields`.

    Returns
    -------
    dict
        The facts of the run as plain numbers and strings: "store", "outcome", "answered", ...

    Examples
    --------
    >>> from prefect import flow
    >>> from npmdask.prefect import find_modes, report
    >>> @flow
    ... def coupled():
    ...     report("coupled", find_modes("mca", "sst.zarr", "rain.zarr", 10, store="runs/coupled"))
    """
    job = partial(fit_coupled, kind, left, right, count, **options)
    return _run_job(job, 2 if options.get("pcs") else 1, store, run_id, memory, threads, workers)
