"""Compare the names of columns of nodes. No name leaves a node: digests do, and the order, where it differs.

A node tells the digest of its names as they lie, and of the sorted ones. Where only the first differs from that of
another node, the place of each column among the sorted names is asked for.
"""

from __future__ import annotations

import hashlib
import json
from itertools import product

import numpy as np

from npmdask.core.storage.labels import Labels
from npmdask.core.storage.names import columns_of, is_counted
from npmdask.errors import BadInputError
from npmdask.federated.client import NodeConnections
from npmdask.federated.protocol import UnansweredError, decode, encode, encoded_size

NAMES, ORDER = "/names", "/names/order"


def told_of(labels: Labels | None, path: str) -> bytes:
    """Encode what a node reveals of the names of its columns, at one of both paths."""
    axes = columns_of(labels)
    places = ([f"{v:.7g}" if axis.places.dtype.kind == "f" else str(v) for v in axis.places] for axis in axes)
    names = [] if is_counted(axes) else ["\n".join(place) for place in product(*places)]
    if path == ORDER:
        return encode(np.argsort(np.argsort(names))[:, None].astype(np.float64))
    said = {"names": names, "sorted": sorted(names) if len(set(names)) == len(names) else []}
    return json.dumps(
        {key: one and hashlib.sha256(json.dumps(one).encode()).hexdigest() for key, one in said.items()}
    ).encode()


def orders(link: NodeConnections, columns: int) -> tuple[tuple[np.ndarray | None, ...], tuple[str, ...]]:
    """Find the columns of the first node among those of each (None: in its order); return also what is to be said.

    Raises
    ------
    BadInputError
        A node has other columns.
    """
    told = [_digests(link, which) for which in range(len(link.urls))]
    named = [which for which, one in enumerate(told) if one[0]]
    places: list[np.ndarray | None] = [None] * len(told)
    for which in named[1:]:
        if told[which][0] == told[named[0]][0]:
            continue
        if not told[which][1] or told[which][1] != told[named[0]][1]:
            raise BadInputError(
                f"{link.urls[which]} and {link.urls[named[0]]} have columns of other names, which are not told: "
                "compare the names in the data of both nodes, and use the same columns"
            )
        first, here = (_order(link, one, columns) for one in (named[0], which))
        places[which] = np.argsort(here)[first]
    bare = ", ".join(url for which, url in enumerate(link.urls) if which not in named)
    said = f"the columns of {bare} were taken by position, because they have no names there"
    return tuple(places), (said,) if named and bare else ()


def _digests(link: NodeConnections, which: int) -> tuple[str, str]:
    try:
        found = json.loads(link.get(which, NAMES))
        return found["names"], found["sorted"]
    except UnansweredError:  # of an earlier version, which does not tell
        return "", ""
    except (ValueError, KeyError, TypeError):
        raise BadInputError(f"{link.urls[which]} does not tell of its columns as a node does") from None


def _order(link: NodeConnections, which: int, columns: int) -> np.ndarray:
    order = decode(link.get(which, ORDER, encoded_size((columns, 1))), (columns, 1))[:, 0]
    if sorted(order) != list(range(columns)):
        raise BadInputError(f"{link.urls[which]} does not tell an order of its columns: start it again")
    return order.astype(np.int64)
