"""An API behind a strategy of the library limits: 20 calls in 2 s for each tenant.

usage: python limiters.py STRATEGY PORT
"""

import asyncio
import sys
import time

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import STRATEGIES

LIMIT = RateLimitItemPerSecond(20, 2)
limiter = STRATEGIES[sys.argv[1]](MemoryStorage())


async def serve(reader, writer):
    """Answers the calls of one connection. Their bodies are short, and have a content-length."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            await reader.readexactly(int(headers.get("content-length", "0")))
            tenant = headers.get("x-tenant", "-")
            status = "200 OK" if limiter.hit(LIMIT, tenant) else "429 Too Many Requests"
            print("ZOO", tenant, status[:3], int(time.time() * 1000), flush=True)
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[2])) as server:
        await server.serve_forever()


asyncio.run(main())
