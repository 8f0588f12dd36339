"""Prefect flows: the only place that imports prefect. Every flow calls the same driver as the command line."""

from npmdask.prefect import settings

settings.apply()  # before anything below this package imports prefect
