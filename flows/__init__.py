"""Scripts over :mod:`npmdask.prefect`, of a checkout: each runs one flow once, and is an entrypoint of deployments."""

import npmdask.prefect.own  # noqa: F401  (settings, before a script imports prefect, which reads them then)
