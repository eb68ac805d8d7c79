"""An emulated line until Ctrl-C: `python -m benchmarks.wan --rate-mbit 200 --rtt-ms 40 PORT=HOST:PORT`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

from benchmarks.wan.proxy import WanProxy


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wan", description=__doc__)
    parser.add_argument("--rate-mbit", type=float, default=200.0, help="each direction, shared by all routes")
    parser.add_argument("--rtt-ms", type=float, default=40.0, help="round trip")
    parser.add_argument(
        "routes", nargs="+", metavar="PORT=HOST:PORT", help="listen on a loopback port, forward"
    )
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    async with WanProxy(options.rate_mbit, options.rtt_ms) as wan:
        for route in options.routes:
            port, _, target = route.partition("=")
            host, _, target_port = target.rpartition(":")
            listening = await wan.route(host, int(target_port), listen=("127.0.0.1", int(port)))
            print(f"127.0.0.1:{listening} -> {host}:{target_port}", flush=True)
        while True:
            before = wan.carried
            await asyncio.sleep(1.0)
            forward, backward = (8e-6 * (new - old) for new, old in zip(wan.carried, before, strict=True))
            print(f"forward {forward:8.2f} Mbit/s   backward {backward:8.2f} Mbit/s", flush=True)


if __name__ == "__main__":
    main()
