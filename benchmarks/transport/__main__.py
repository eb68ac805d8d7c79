"""Benchmarks of the KV transport: `python -m benchmarks.transport [CASE ...] [--quick | --full]`.

Each case measures a baseline in the same run. Progress goes to stderr, a table and at last JSON lines
to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.command import chosen, command, run, say
from benchmarks.report import Result
from benchmarks.transport import line_cases, long_cases, soak, trace_live, trace_mix
from benchmarks.transport.agentic import DEFAULT
from benchmarks.transport.compress import compress
from benchmarks.transport.line_cases import Wan
from benchmarks.transport.peers import peers

Case = Callable[[argparse.Namespace], list[Result]]


def trace_mix_case(options: argparse.Namespace) -> list[Result]:
    """The agentic trace in virtual time."""
    mix = trace_mix.Mix(
        trace=options.trace,
        seeds=(1, 2) if options.quick else (1, 2, 3, 4, 5),
        rate=options.gbit * 1e9 / 8,
        token_bytes=options.token_bytes,
        idle=options.idle,
        most_sessions=100 if options.quick else None,
    )
    runs = trace_mix.simulate(mix, options.processes)
    target = options.plots / "trace-mix.png"
    say(f"plot: {target}" if trace_mix.plot(runs, target) else "no plot: matplotlib is not installed")
    return list(trace_mix.results(mix, runs))


def trace_live_case(options: argparse.Namespace) -> list[Result]:
    """A window of the agentic trace in real time, over sockets, beside virtual time."""
    seconds = 15.0 if options.quick else 60.0
    seeds = (1, 2, 3) if options.full else (1,)
    live = trace_live.Live(options.trace, seconds, seeds)
    return asyncio.run(trace_live.trace_live(live, options.plots, say))


def loopback_case(options: argparse.Namespace) -> list[Result]:
    """Two processes on this machine."""
    pairs, megabytes = (2, 256) if options.quick else (9, 2048) if options.full else (5, 1024)
    return list(line_cases.loopback(options.pairs or pairs, megabytes, say))


def wan_case(options: argparse.Namespace) -> list[Result]:
    """Beside iperf3 on emulated lines."""
    slow = Wan(200, 40, 128, 2)
    fast = Wan(1000, 40, 512, 4)
    pairs = options.pairs or (1 if options.quick else 5 if options.full else 3)
    found = asyncio.run(line_cases.wan([slow], pairs, 0.93, options.plots, say))
    return (
        found
        if options.quick
        else found + asyncio.run(line_cases.wan([fast], pairs, 0.90, options.plots, say))
    )


def wan_loss_case(options: argparse.Namespace) -> list[Result]:
    """Random loss, with the congestion control that is meant for it."""
    pairs = options.pairs or (1 if options.quick else 5 if options.full else 3)
    trips = (1.0, 40.0, 150.0) if options.full else (40.0,)
    lines = [
        Wan(200, rtt, 128, 4, loss=loss, congestion=line_cases.bbr())
        for rtt in trips
        for loss in ((0.001,) if options.quick else (0.001, 0.01))
    ]
    return asyncio.run(line_cases.wan(lines, pairs, 0.85, options.plots, say))


def urgent_case(options: argparse.Namespace) -> list[Result]:
    """Small transfers beside a large one."""
    megabytes = 128 if options.quick else 1024 if options.full else 512
    runs = options.pairs or (1 if options.quick else 4 if options.full else 3)
    return asyncio.run(line_cases.urgent((1.0,) if options.quick else (1.0, 4.0), megabytes, runs, say))


def tls_case(options: argparse.Namespace) -> list[Result]:
    """Two processes on this machine, encrypted; and over emulated lines."""
    pairs, megabytes = (1, 64) if options.quick else (5, 256)
    files = line_cases.certificates(options.tls)
    found = list(line_cases.tls(options.pairs or pairs, megabytes, files, say))
    lines = [Wan(200, 40, 128, 2), Wan(1000, 40, 512, 4)]
    pairs = options.pairs or (1 if options.quick else 5 if options.full else 3)
    return found + asyncio.run(line_cases.tls_wan(lines[:1] if options.quick else lines, pairs, files, say))


def peers_case(options: argparse.Namespace) -> list[Result]:
    """Two processes on this machine, beside other transfer engines (`--peers`)."""
    if not options.peers:
        say("loopback-peers: name interpreters that have them by --peers (see benchmarks/peers)")
    pairs, megabytes = (1, 256) if options.quick else (9, 2048) if options.full else (5, 1024)
    return list(peers(options.peers, options.pairs or pairs, megabytes, say))


def compress_case(options: argparse.Namespace) -> list[Result]:
    """KV of the development model, compressed on the wire."""
    slow, fast = (Wan(100, 30, 24, 2), Wan(1000, 30, 256, 4))
    if not options.quick:
        # what arrives with it is compared with what arrives without for 0.6 s in 20
        slow, fast = replace(slow, megabytes=64), replace(fast, megabytes=2560)
    pairs = options.pairs or (1 if options.quick else 5 if options.full else 3)
    return asyncio.run(compress([slow, fast], pairs, options.plots.parent, say))


def many_case(options: argparse.Namespace) -> list[Result]:
    """Transfers by the hundreds."""
    return long_cases.many(400 if options.quick else 2000, 340, 1 if options.quick else 3, say)


def estimate_case(options: argparse.Namespace) -> list[Result]:
    """What is known of a line that is seldom used, and of one that changes."""
    return asyncio.run(long_cases.estimate(20 if options.quick else 300 if options.full else 40, say))


def cuts_case(options: argparse.Namespace) -> list[Result]:
    """A transfer over a line that is cut again and again."""
    return asyncio.run(
        long_cases.cuts(2 if options.quick else 20 if options.full else 6, 10.0 if options.full else 4.0, say)
    )


def soak_case(options: argparse.Namespace) -> list[Result]:
    """Minutes of transfers and cuts: nothing grows, nothing is left."""
    return asyncio.run(soak.soak(20 if options.quick else 600 if options.full else 120, say))


CASES: dict[str, Case] = {
    "trace-mix": trace_mix_case,
    "trace-mix-live": trace_live_case,
    "loopback": loopback_case,
    "loopback-peers": peers_case,
    "wan": wan_case,
    "wan-loss": wan_loss_case,
    "urgent": urgent_case,
    "compress": compress_case,
    "tls": tls_case,
    "many": many_case,
    "estimate": estimate_case,
    "cuts": cuts_case,
    "soak": soak_case,
}


def arguments() -> argparse.ArgumentParser:
    parser = command("transport", __doc__, CASES)
    parser.add_argument("--quick", action="store_true", help="a sample: seconds, to see that it runs")
    parser.add_argument("--full", action="store_true", help="the whole matrix")
    parser.add_argument("--pairs", type=int, default=0, help="interleaved pairs of each case with sockets")
    parser.add_argument("--plots", type=Path, default=Path("build/plots"), help="where PNG files go")
    parser.add_argument(
        "--peers",
        type=Path,
        action="append",
        default=[],
        metavar="PYTHON",
        help="an interpreter with Mooncake or NIXL, for loopback-peers; may be given several times",
    )
    parser.add_argument(
        "--tls",
        type=Path,
        default=Path("tests/golden/tls"),
        help="directory with mesh.pem, mesh.key, mesh-ca.pem",
    )
    trace = parser.add_argument_group("trace-mix")
    trace.add_argument(
        "--trace", type=Path, default=DEFAULT, help="agentic_sessions.jsonl.gz (default: %(default)s)"
    )
    trace.add_argument("--gbit", type=float, default=10.0, help="the line's rate")
    trace.add_argument("--token-bytes", type=int, default=70_272, help="KV of one token")
    trace.add_argument("--idle", type=float, default=0.0, help="seconds a prefix stays cached; 0: for ever")
    trace.add_argument("--processes", type=int, default=2)
    return parser


def main() -> None:
    parser = arguments()
    options = parser.parse_args()
    names = chosen(parser, options.cases, CASES)
    run("transport", names, lambda name: CASES[name](options))


if __name__ == "__main__":
    main()
