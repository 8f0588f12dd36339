"""Record the privacy budget granted and spent of each data set: one ledger for runs, processes and machines."""

from npmdask.privacy.ledger.format import export_lines
from npmdask.privacy.ledger.granting import default_address
from npmdask.privacy.ledger.ledger import Grant, Ledger, Run, Status, open_ledger

__all__ = ["Grant", "Ledger", "Run", "Status", "default_address", "export_lines", "open_ledger"]
