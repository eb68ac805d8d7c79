"""An emulated line until Ctrl-C: `python -m benchmarks.wan --rate-mbit 200 --rtt-ms 40 PORT=HOST:PORT`.

As root two network namespaces with the kernel's own TCP between them, whose names are printed: `ip
netns exec NAME COMMAND` runs a command at one end. As an ordinary user a TCP proxy, which knows rate,
round trip, buffer and cuts alone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys

from benchmarks.wan.forwarder import Cut
from benchmarks.wan.impairment import Impairment
from benchmarks.wan.namespaces import NamespaceLine, missing
from benchmarks.wan.proxy import WanProxy

Line = NamespaceLine | WanProxy


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--engine", choices=("auto", "namespaces", "proxy"), default="auto")
    parser.add_argument("--rate-mbit", type=float, default=200.0, help="each direction, shared by all routes")
    parser.add_argument("--back-rate-mbit", type=float, help="of the backward direction, where it differs")
    parser.add_argument("--rtt-ms", type=float, default=40.0, help="round trip")
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="each way, on top")
    parser.add_argument("--buffer-ms", type=float, default=40.0, help="of the rate, that may queue")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of the packets")
    parser.add_argument("--burst", type=float, default=1.0, help="packets lost in a row, on average")
    parser.add_argument(
        "--cut",
        action="append",
        default=[],
        type=_cut,
        metavar="AT:SECONDS[:reset]",
        help="cut the line then and so long, silently or with resets; may be given again",
    )
    parser.add_argument("--seed", type=int, default=1, help="of losses and jitter")
    parser.add_argument(
        "routes", nargs="*", metavar="PORT=HOST:PORT", help="listen on a loopback port, forward"
    )
    options = parser.parse_args()
    why = missing()
    if options.engine == "namespaces" and why:
        parser.error(f"no namespaces here: {why}")
    proxy = options.engine == "proxy" or bool(why)
    if proxy and not options.routes:
        parser.error(
            f"the proxy needs a route PORT=HOST:PORT{f' (no namespaces here: {why})' if why else ''}"
        )
    if proxy and why:
        print(f"no namespaces here ({why}): a TCP proxy", file=sys.stderr)
    if proxy and (options.loss or options.jitter_ms or options.back_rate_mbit):
        parser.error("the proxy has neither loss, jitter nor another rate backwards")
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_serve(_line(options, proxy), options, proxy))


def _cut(text: str) -> Cut:
    at, seconds, *kind = text.split(":")
    if kind not in ([], ["reset"]):
        raise ValueError(text)
    return float(at), float(seconds), not kind


def _line(options: argparse.Namespace, proxy: bool) -> Line:
    if proxy:
        return WanProxy(options.rate_mbit, options.rtt_ms, buffer_ms=options.buffer_ms)
    rates = (options.rate_mbit, options.back_rate_mbit or options.rate_mbit)
    forward, backward = (
        Impairment(
            rate, options.rtt_ms / 2, options.jitter_ms, options.buffer_ms, options.loss / 100, options.burst
        )
        for rate in rates
    )
    return NamespaceLine(forward, backward, cuts=options.cut, seed=options.seed)


async def _serve(line: Line, options: argparse.Namespace, proxy: bool) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with line as wan:
        if isinstance(wan, NamespaceLine):
            print(f"ip netns exec {wan.near}: {wan.near_address}", flush=True)
            print(f"ip netns exec {wan.far}: {wan.far_address}", flush=True)
        for route in options.routes:
            port, _, target = route.partition("=")
            host, _, target_port = target.rpartition(":")
            listening = await wan.route(host, int(target_port), listen=("127.0.0.1", int(port)))
            print(f"127.0.0.1:{listening} -> {host}:{target_port}", flush=True)
        script = asyncio.create_task(_cuts(wan, options.cut if proxy else []))
        while True:
            before = wan.carried
            await asyncio.sleep(1.0)
            forward, backward = (8e-6 * (new - old) for new, old in zip(wan.carried, before, strict=True))
            print(f"forward {forward:8.2f} Mbit/s   backward {backward:8.2f} Mbit/s", flush=True)
            if script.done():
                script.result()


async def _cuts(line: Line, cuts: list[Cut]) -> None:
    """The script, where the line does not follow it itself."""
    now = 0.0
    for at, seconds, silent in sorted(cuts):
        await asyncio.sleep(max(0.0, at - now))
        line.cut(silent=silent)
        await asyncio.sleep(seconds)
        line.heal()
        now = max(now, at) + seconds


if __name__ == "__main__":
    main()
