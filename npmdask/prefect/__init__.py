"""Prefect flows over the driver of the command line, and what schedules and serves them; only here prefect is imported.

For a flow of your own, on your server and work pool (docs/howto/flows.md): flows to call as sub-flows, and steps to
call one by one, which are tasks of Prefect.

>>> from npmdask.prefect import npm
>>> facts = npm("samples.zarr", 10, center=True, memory="1GiB", store="runs/first")  # doctest: +SKIP

* Flows, each beside its steps: :mod:`~npmdask.prefect.power_method` (``npm``, ``npm_deflation``,
  ``distributed_private_pca``), :mod:`~npmdask.prefect.private_release`, :mod:`~npmdask.prefect.streaming_update`,
  :mod:`~npmdask.prefect.staged_runs` (``topics``, ``latent``, ``two_fields``), :mod:`~npmdask.prefect.benchmark`.
* What they share: :mod:`~npmdask.prefect.tasks`, :mod:`~npmdask.prefect.parameters`, :mod:`~npmdask.prefect.publish`,
  :mod:`~npmdask.prefect.cli`.
* What runs them: :mod:`~npmdask.prefect.schedules`, :mod:`~npmdask.prefect.serve`, :mod:`~npmdask.prefect.server`,
  :mod:`~npmdask.prefect.keeper`, :mod:`~npmdask.prefect.programs`.

To import it changes no setting: Prefect is as you have it.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from npmdask.errors import extra

if TYPE_CHECKING:
    from npmdask.prefect.parameters import configuration
    from npmdask.prefect.power_method import deflate, distributed_private_pca, npm, npm_deflation
    from npmdask.prefect.staged_runs import find_components, find_modes, find_topics, latent, look, topics, two_fields
    from npmdask.prefect.tasks import NotConvergedError, iterate, plan, report, validate

if find_spec("prefect") is None:
    with extra("flows"):
        import prefect  # noqa: F401

LATER = {
    name: module
    for module, names in {
        "parameters": "configuration",
        "power_method": "deflate distributed_private_pca npm npm_deflation",
        "staged_runs": "find_components find_modes find_topics latent look topics two_fields",
        "tasks": "NotConvergedError iterate plan report validate",
    }.items()
    for name in names.split()
}

__all__ = [
    "NotConvergedError",
    "configuration",
    "deflate",
    "distributed_private_pca",
    "find_components",
    "find_modes",
    "find_topics",
    "iterate",
    "latent",
    "look",
    "npm",
    "npm_deflation",
    "plan",
    "report",
    "topics",
    "two_fields",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: Prefect takes seconds, which a server's settings need not."""
    if name not in LATER:
        raise AttributeError(f"module 'npmdask.prefect' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"npmdask.prefect.{LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
