"""A link between this machine and a server on it: so much delay, and so many bytes a second for all connections.

``python -m benchmarks.link PORT PORT_OF_SERVER MILLISECONDS BYTES_A_SECOND``. The delay is of a round trip; the limit
is of what the server sends. Bytes that wait for their turn are few, so that a server is slowed down as by a network.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress

PART = 64 * 1024
AHEAD = 0.01  # seconds of the link that may be handed on before their time: a clock is not that fine


class Link:
    """What all connections share."""

    def __init__(self, port: int, seconds: float, rate: float) -> None:
        self.port, self.seconds, self.rate = port, seconds, rate
        self._free = 0.0  # when the link has sent all that it was given

    async def sent(self, nbytes: int) -> None:
        """Wait until so many bytes have gone over the link, one part after the other."""
        self._free = max(self._free, time.monotonic()) + nbytes / self.rate
        wait = self._free - time.monotonic()
        if wait > AHEAD:
            await asyncio.sleep(wait - AHEAD / 2)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await asyncio.sleep(self.seconds)  # a connection is made in a round trip
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.port, limit=4 * PART)
            await asyncio.gather(
                self._copied(reader, to_server, delay=self.seconds, limited=False),
                self._copied(from_server, writer, delay=0.0, limited=True),
            )

    async def _copied(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, delay: float, limited: bool
    ) -> None:
        """Hand on what comes, ``delay`` seconds later: of a request, which is short, the delay both ways."""
        with suppress(OSError):
            while data := await source.read(PART):
                if delay:
                    await asyncio.sleep(delay)
                if limited:
                    await self.sent(len(data))
                target.write(data)
                await target.drain()
        with suppress(OSError):
            target.close()


async def main(port: int, server: int, milliseconds: float, rate: float) -> None:
    link = Link(server, milliseconds / 1000, rate)
    async with await asyncio.start_server(link.connected, "127.0.0.1", port, limit=4 * PART) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
