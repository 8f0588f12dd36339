"""Opening what lies in an object store: ``s3://bucket/key``, ``gs://``, ``az://``.

Credentials and endpoints come from the environment (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``,
``AWS_REGION``, ``AWS_ENDPOINT_URL`` for S3-compatible servers, ``AWS_ALLOW_HTTP=true`` for plain HTTP), of every
worker too; none is kept in a run.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import zarr

from npmdask.core.storage.chunk_access import first_line
from npmdask.core.storage.paths import require_no_credentials
from npmdask.core.storage.safe_open import open_node
from npmdask.errors import BadInputError, Later, LostError

store = Later("obstore.store", "objects")
RETRIES: Any = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}  # then the run ends, and can be resumed
DENIED = re.compile(r"status code: (40[0-6]|41\d|507)|169\.254\.169\.254|metadata\.google|[Cc]redential")
# Of obstore, by name: without the extra `objects` there is none.
ANSWERS = {"AlreadyExistsError", "NotFoundError", "PermissionDeniedError", "PreconditionError", "UnauthenticatedError"}


def of_an_object_store(error: BaseException) -> bool:
    """Say whether this is an error of obstore, which need not be installed."""
    return any(base.__module__.startswith("obstore") for base in type(error).__mro__)


def no_answer(error: BaseException) -> bool:
    """Say whether an object store cannot be reached, as far as can be told, and did not refuse."""
    answered = any(base.__name__ in ANSWERS for base in type(error).__mro__)
    return of_an_object_store(error) and not answered and not DENIED.search(str(error))


def open_remote(url: str) -> Any:
    """The Zarr array or group at ``url``, read-only.

    Raises
    ------
    BadInputError
        Nothing there, no access, not a Zarr store, or credentials in the URL.
    LostError
        No answer: it may come back.
    """
    require_no_credentials(url)
    try:
        opened = store.from_url(url.rstrip("/"), retry_config=RETRIES)
        return open_node(zarr.storage.ObjectStore(opened, read_only=True))
    except BadInputError:
        raise
    except Exception as error:
        ours = isinstance(error, OSError | ValueError | KeyError | TypeError | AttributeError)
        if not ours and not of_an_object_store(error):
            raise
        reason = first_line(error)
        raise (LostError if no_answer(error) else BadInputError)(
            f"{url} cannot be opened as a Zarr store ({reason}): check the address, the credentials in the environment "
            "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) and, for an S3-compatible server, AWS_ENDPOINT_URL; "
            "of an icechunk repository give a session, in Python"
        ) from error


def objects(node: Any) -> list[tuple[str, int, str]]:
    """Name, size and entity tag of every object below ``node``: what can be seen of it without reading."""
    prefix = f"{node.path}/" if node.path else None
    listed = (meta for batch in node.store_path.store.store.list(prefix=prefix) for meta in batch)
    return sorted((m["path"], int(m["size"]), str(m["e_tag"] or m["last_modified"])) for m in listed)
