"""The Python interface, continued: ``resume`` of a run of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npmdask.core.checkpoint.rights import allow as allow_urls
from npmdask.core.checkpoint.store import RunStore, folder_of, no_run
from npmdask.core.execution.executor import scheduler_of
from npmdask.core.runs.kinds import kind_of
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.solution import Solution
from npmdask.errors import BadInputError

if TYPE_CHECKING:
    from npmdask.latent.answers import LatentAnswer
    from npmdask.streaming import StreamSolution
    from npmdask.topics.run import TopicAnswer


def resume(
    store: str | Path,
    *,
    memory: str | int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    device: str | None = None,
    device_memory: str | int | None = None,
    max_steps: int | None = None,
    tol: float | None = None,
    low_rank_tol: float | None = None,
    allow: str | Sequence[str] = (),
    observer: Observer | None = None,
    progress: bool = False,
) -> Solution | StreamSolution | TopicAnswer | LatentAnswer:
    """
    Resume the run in ``store`` from its last commit; a finished run returns its result without a pass.

    For a stream, this processes the rows that are new since its last commit; only ``memory`` may be given. A job
    (topics, a mixture, independent components) continues with its stages.

    Parameters
    ----------
    store : str or Path
        Folder or URL of the run.
    memory : str or int, optional
        Limit for all processes, like "1GiB". This and the next six keep their earlier values unless given; none but
        ``device`` changes a bit of the result.
    workers : int, optional
        Worker processes. A cluster replaces workers and threads, and vice versa.
    threads : int, optional
        Threads of each process.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`top_k`; "" for none.
    certificates : str or Path, optional
        Certificates of a cluster at ``tls://``.
    device : {"cpu", "auto", "cuda"}, optional
        As for :func:`top_k`. A run that began on a GPU continues anywhere, and says so: its last bits may differ.
    device_memory : str or int, optional
        As for :func:`top_k`.
    max_steps : int, optional
        Maximum number of passes. This and the next two may be changed, because they decide when a run stops, not what
        its steps compute.
    tol : float, optional
        Relative residual to reach.
    low_rank_tol : float, optional
        Tolerance for the residual of a rank-k approximation, as for :func:`top_k`.
    allow : str or sequence of str, optional
        URLs of data, ledgers or runs that the run names and may open. A run that began here, as this user, needs none;
        one that was sent or moved does, once: a store alone does not decide what is opened over the network.
    observer : Observer, optional
        Called for the plan, and for every pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    Solution, StreamSolution, TopicAnswer or LatentAnswer
        The return value of the call that began the run.

    Raises
    ------
    BadInputError
        There is no run in ``store``, or its source is gone.
    RefusedError
        Too little memory, changed data, or a run held by another process.

    See Also
    --------
    top_k : Start a run.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask, zarr
    >>> rows = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     zarr.save(folder + "/rows.zarr", rows)
    ...     first = npmdask.top_k(folder + "/rows.zarr", 3, kind="samples", store=folder + "/run", max_steps=1)
    ...     second = npmdask.resume(folder + "/run", max_steps=100)
    >>> first.converged, second.converged
    (False, True)
    """
    path = folder_of(store)
    if not (path / "run.json").exists():
        raise no_run(store)
    spec = RunStore(path).read_spec() or {}
    if allow:
        allow_urls([allow] if isinstance(allow, str) else allow, spec, path)
        spec = RunStore(path).read_spec() or {}
    asked: dict[str, Any] = {"memory": memory, "workers": workers, "threads": threads, "cluster": scheduler_of(cluster)}
    asked |= {"certificates": certificates, "device": device, "device_memory": device_memory}
    asked |= {"max_steps": max_steps, "tol": tol, "low_rank_tol": low_rank_tol}
    given = {name: value for name, value in asked.items() if value is not None}
    kind = kind_of(spec)
    if not given.keys() <= kind.may_change:
        raise BadInputError(kind.refusal(path))
    with with_progress(observer, progress) as told:
        answer: Solution = kind.resume(path, given, told)
    return answer
