"""Read the metadata of the HDF5 file that the command line names: a script by itself, of which no other module is seen.

A line on stdout for every object is its sign of life. What is wrong is not said here: who reads the file says it.
"""

import sys
from contextlib import suppress
from typing import Any

import h5py


def look(name: str, node: Any) -> None:
    """Read the attributes of an object, the index of its chunks, and names of columns as AnnData keeps them."""
    print(flush=True)
    with suppress(Exception):
        for attribute in node.attrs:
            with suppress(Exception):
                node.attrs[attribute]
    with suppress(Exception):  # a group has neither
        node[:] if name.startswith("var/") and node.size < 2**24 else node.id.get_num_chunks()


if __name__ == "__main__":
    with suppress(Exception), h5py.File(sys.argv[1], "r") as file:
        look("", file)
        file.visititems(look)
