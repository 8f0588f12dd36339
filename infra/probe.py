"""Does something answer? ``python probe.py http://HOST:PORT/PATH | tcp://HOST:PORT | file:PATH``; status 0 if so.

For the health checks of containers and of the local cluster. The standard library only: images get it as it is.
"""

import os
import socket
import sys
import time
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

SECONDS = 4.0
FRESH = 60.0  # seconds since a file was touched


def answers(what: str) -> bool:
    """Whether it is there: status 200 of http, an open port of tcp, a file that was touched in the last minute."""
    url = urlsplit(what)
    try:
        if url.scheme == "http":
            with build_opener(ProxyHandler({})).open(what, timeout=SECONDS) as answer:  # never through a proxy
                return bool(answer.status == 200)
        if url.scheme == "tcp":
            socket.create_connection((str(url.hostname), int(url.port or 0)), timeout=SECONDS).close()
            return True
        return time.time() - os.stat(url.path).st_mtime < FRESH
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if answers(sys.argv[1]) else 1)
