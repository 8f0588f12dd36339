"""Prefect flows over the driver of the command line, and what schedules and serves them; no other room imports prefect.

* Flows, each beside its steps: :mod:`~npmdask.prefect.power_method` (``npm``, ``npm_deflation``,
  ``distributed_private_pca``), :mod:`~npmdask.prefect.private_release`, :mod:`~npmdask.prefect.streaming_update`,
  :mod:`~npmdask.prefect.staged_runs` (``topics``, ``latent``), :mod:`~npmdask.prefect.benchmark`.
* For a flow of your own: :mod:`~npmdask.prefect.tasks`, :mod:`~npmdask.prefect.parameters`,
  :mod:`~npmdask.prefect.tasks`, :mod:`~npmdask.prefect.publish`, :mod:`~npmdask.prefect.cli`.
* What runs them: :mod:`~npmdask.prefect.schedules`, :mod:`~npmdask.prefect.serve`, :mod:`~npmdask.prefect.server`,
  :mod:`~npmdask.prefect.keeper`.

To import it sets PREFECT_HOME and other settings where the environment does not (:mod:`~npmdask.prefect.settings`).
"""

from importlib.util import find_spec

from npmdask.errors import extra
from npmdask.prefect import settings

settings.apply_settings()  # before anything below this package imports prefect
if find_spec("prefect") is None:
    with extra("flows"):
        import prefect  # noqa: F401
