"""Record the privacy budget granted and spent of each data set: one ledger for runs, processes and machines."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npmdask.ledger.format import export_lines
    from npmdask.ledger.granting import default_address
    from npmdask.ledger.ledger import Grant, Ledger, Run, Status, open_ledger

__all__ = ["Grant", "Ledger", "Run", "Status", "default_address", "export_lines", "open_ledger"]
LATER = {"export_lines": "format", "default_address": "granting"}


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: a command's help needs no database."""
    if name not in __all__:
        raise AttributeError(f"module 'npmdask.ledger' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"npmdask.ledger.{LATER.get(name, 'ledger')}"), name)
