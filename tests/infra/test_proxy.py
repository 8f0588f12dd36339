"""The proxy outlives the scheduler behind it: who comes too early is sent away, who comes later is served."""

from __future__ import annotations

import socket

from infra.proxy import Proxy


def test_clients_are_served_again_once_the_scheduler_is_back() -> None:
    """Mutant: the proxy ends where it cannot reach the scheduler."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    proxy = Proxy(port)
    try:
        place = ("127.0.0.1", int(proxy.address.rpartition(":")[2]))
        with socket.create_connection(place, timeout=20) as early:
            assert early.recv(1) == b""
        with (
            socket.create_server(("127.0.0.1", port)) as scheduler,
            socket.create_connection(place, timeout=20) as late,
        ):
            scheduler.settimeout(20)
            late.sendall(b"?")
            served = scheduler.accept()[0]
            with served:
                assert served.recv(1) == b"?"
                served.sendall(b"!")
                assert late.recv(1) == b"!"
    finally:
        proxy.close()
