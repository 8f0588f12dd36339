"""To import this, before prefect, applies the settings of the programs that are our own."""

from npmdask.prefect.settings import apply_settings

apply_settings()
