"""npmdask: top-k singular vectors of data larger than memory, checkpointed, resumable, with an honest error.

>>> import npmdask
>>> solution = npmdask.top_k("data.zarr", 10, memory="1GiB", store="runs/first")  # doctest: +SKIP
"""

from npmdask.api import deflate, resume, top_k
from npmdask.driver import Solution
from npmdask.errors import BadInputError, BudgetError, CommitError, NpmdaskError, RefusedError
from npmdask.privacy import Privacy

__all__ = [
    "BadInputError",
    "BudgetError",
    "CommitError",
    "NpmdaskError",
    "Privacy",
    "RefusedError",
    "Solution",
    "deflate",
    "resume",
    "top_k",
]
