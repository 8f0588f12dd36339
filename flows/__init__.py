"""Scripts over :mod:`npmdask.prefect`, of a checkout: each runs one flow once, and is an entrypoint of deployments."""

from npmdask.prefect.programs import apply_settings

apply_settings()  # before a script imports prefect, which reads them then
