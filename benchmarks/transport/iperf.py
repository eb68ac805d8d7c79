"""iperf3 on a course, counted as our own runs are: bytes that its server's reader got, over time."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.transport.course import Course
from benchmarks.transport.loopback import Place, Run

_PORT = 5201
_LISTENS = f":{_PORT:04X} 00000000:0000 0A"
_STARTS = 10.0


def iperf(
    where: Course,
    streams: int,
    *,
    size: int = 0,
    seconds: float = 0.0,
    congestion: str = "",
    most: float = 120.0,
) -> Run | None:
    """`size` bytes, or as many as pass in `seconds`; None where iperf3 is not installed.

    Its server's intervals of 0.1 s count: what its client says, or its sums, hold what queued before and what
    was only put into a socket. Raises ChildProcessError where it fails, TimeoutExpired after `most` seconds.
    """
    if shutil.which("iperf3") is None:
        return None
    words = ["-s", "-1", "-J", "-i", "0.1", "-p", str(_PORT), "-B", where.far.address]
    server = subprocess.Popen(_inside(where.far, ["iperf3", *words]), stdout=subprocess.PIPE, text=True)
    try:
        _until_it_listens(server)
        port = where.through(_PORT)
        words = ["-c", where.far.address, "-p", str(port), "-P", str(streams), "-l", "256K", "-J"]
        words += ["-n", str(size)] if size else ["-t", f"{seconds:g}"]
        words += ["-C", congestion] if congestion else []
        command = _inside(where.near, ["iperf3", *words])
        client = subprocess.run(command, capture_output=True, text=True, timeout=most, check=False)
        report = json.loads(client.stdout)
        if "error" in report:
            raise ChildProcessError(f"iperf3: {report['error']}")
        said, _ = server.communicate(timeout=_STARTS)
        return Run(progress(json.loads(said)))
    finally:
        server.kill()
        server.communicate()


def progress(report: dict[str, list[dict[str, dict[str, float]]]]) -> tuple[tuple[float, int], ...]:
    """(seconds, bytes so far) at the ends of the intervals of a server's report, from the first with bytes
    on. Raises ChildProcessError where nothing has arrived."""
    found: list[tuple[float, int]] = []
    got = 0
    for each in report["intervals"]:
        got += int(each["sum"]["bytes"])
        if got:
            found.append((each["sum"]["end"], got))
    if not found:
        raise ChildProcessError("iperf3: nothing has arrived")
    return tuple(found)


def _until_it_listens(server: subprocess.Popen[str]) -> None:
    """With a report in JSON it does not say so."""
    sockets = Path(f"/proc/{server.pid}/net/tcp")  # of its namespace
    until = time.monotonic() + _STARTS
    while _LISTENS not in sockets.read_text():
        if server.poll() is not None or time.monotonic() > until:
            raise ChildProcessError(f"iperf3 -s does not listen: {server.poll()}")
        time.sleep(0.02)


def _inside(place: Place, command: list[str]) -> list[str]:
    return ["ip", "netns", "exec", place.namespace, *command] if place.namespace else command
