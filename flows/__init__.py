"""Scripts over :mod:`npmdask.prefect`, of a checkout: each runs one flow once, and is an entrypoint of deployments."""
