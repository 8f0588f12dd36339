"""Record the privacy budget granted and spent of each data set: one ledger for runs, processes and machines."""

from npmdask.ledger.format import export_lines
from npmdask.ledger.granting import default_address
from npmdask.ledger.ledger import Grant, Ledger, Run, Status, open_ledger

__all__ = ["Grant", "Ledger", "Run", "Status", "default_address", "export_lines", "open_ledger"]
