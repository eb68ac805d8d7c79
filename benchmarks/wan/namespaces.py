"""A line between two network namespaces of this machine, so that the kernel's own TCP is what runs over
it.

Each namespace holds a TUN device; a forwarder in a process of its own carries packets between them.
Needs root and /dev/net/tun: `missing()` says what is not there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from benchmarks.wan.forwarder import Cut, Task
from benchmarks.wan.impairment import Impairment
from benchmarks.wan.relay import Relay, Streams

MTU = 65_000
_KERNEL = ("net.ipv4.tcp_tso_rtt_log=0",)
"""As deploy/sysctl says: what matters on the shortest lines, where the default sends 32 KiB at once."""
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_TUN = Path("/dev/net/tun")
_NAMES = Path("/run/netns")


def missing() -> str:
    """Why there can be no such line here; empty where there can."""
    if os.geteuid() != 0:
        return "not root"
    if not _TUN.exists():
        return f"no {_TUN}"
    if shutil.which("ip") is None:
        return "no `ip` command (iproute2)"
    try:
        _open_tun(f"pdd-try{os.getpid() % 10000}")()
    except OSError as error:
        return f"{_TUN}: {error}"
    made = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return made.stderr.strip()


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread's new sockets belong to `namespace`. Raises OSError."""
    with Path("/proc/thread-self/ns/net").open() as here, (_NAMES / namespace).open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(here.fileno())


class NamespaceLine:
    """Use as `async with NamespaceLine(forward, backward) as line`: sockets made in `inside(line.near)` reach
    `line.far_address` over the line. Raises OSError where `missing()` says something."""

    def __init__(
        self,
        forward: Impairment,
        backward: Impairment | None = None,
        *,
        cuts: Sequence[Cut] = (),
        seed: int = 1,
        mtu: int = MTU,
        name: str = "",
    ) -> None:
        name = name or f"pdd{os.getpid()}"
        self.near, self.far = f"{name}-a", f"{name}-b"
        self.near_address, self.far_address = "10.66.0.1", "10.66.0.2"
        self._impairments = (forward, backward or forward)
        self._cuts = list(cuts)
        self._seed = seed
        self._mtu = mtu
        self._answer = (0, 0, 0, 0)
        self._process: subprocess.Popen[bytes] | None = None
        self._relay = Relay()
        self._undo = contextlib.ExitStack()

    async def __aenter__(self) -> NamespaceLine:
        why = missing()
        if why:
            raise OSError(f"no line between namespaces here: {why}")
        try:
            await asyncio.to_thread(self._start)
        except BaseException:
            self._undo.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._relay.close()
        await asyncio.to_thread(self._undo.close)

    # --- as the proxy's ---

    async def route(
        self, host: str, port: int, *, flip: bool = False, listen: tuple[str, int] = ("127.0.0.1", 0)
    ) -> int:
        """Listen on loopback, outside of both namespaces, and forward to host:port over the line; the port
        listened on. `flip`: the dialling side stands at the far end."""
        here, there, address = self.near, self.far, self.far_address
        if flip:
            here, there, address = self.far, self.near, self.near_address
        with inside(there):
            exit_ = socket.create_server((address, 0))
        entry = socket.create_server(listen)

        async def cross() -> Streams:
            with inside(here):
                sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, exit_.getsockname())
            return await asyncio.open_connection(sock=sock)

        await self._relay.serve(exit_, lambda: asyncio.open_connection(host, port))
        await self._relay.serve(entry, cross)
        return int(entry.getsockname()[1])

    def set_rate(self, rate_mbit: float) -> None:
        """Change the rate of both directions from now on."""
        self._tell("rate", rate_mbit)

    def cut(self, *, silent: bool = True) -> None:
        """Packets are lost from now on; where not `silent`, both ends of every TCP connection get a reset."""
        self._tell("cut" if silent else "reset")

    def heal(self) -> None:
        """End a cut. Connections that lived through it go on."""
        self._tell("heal")

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes of packets let through so far, (forward, backward)."""
        self._tell("count")
        return self._answer[0], self._answer[1]

    @property
    def dropped(self) -> tuple[int, int]:
        """Packets lost so far, (forward, backward)."""
        self._tell("count")
        return self._answer[2], self._answer[3]

    # --- inside ---

    def _tell(self, name: str, value: float = 0.0) -> None:
        assert self._process is not None, "the line has not begun"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode((name, value)) + b"\n")
        self._process.stdin.flush()
        self._answer = msgspec.json.decode(self._process.stdout.readline(), type=tuple[int, int, int, int])

    def _start(self) -> None:
        devices = []
        for name, address in ((self.near, self.near_address), (self.far, self.far_address)):
            _ip("netns", "add", name)
            self._undo.callback(_ip, "netns", "delete", name, check=False)
            device = f"tun{name[-12:]}".replace("-", "")
            close = _open_tun(device)
            devices.append(close.descriptor)
            self._undo.callback(close)
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "mtu", str(self._mtu), "txqueuelen", "1000", "up")
            _ip("netns", "exec", name, "sysctl", "-qw", *_KERNEL, check=False)  # the first that has it: 5.18
        task = Task((devices[0], devices[1]), self._impairments, self._seed, self._cuts)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.wan.forwarder", msgspec.json.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=devices,
            cwd=Path(__file__).parents[2],
        )
        self._undo.callback(self._stop)
        self._tell("count")  # it is there

    def _stop(self) -> None:
        """Close the forwarder's input and wait for its end."""
        assert self._process is not None
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class _Device:
    """An open TUN device; calling it closes it, which removes the device."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __call__(self) -> None:
        os.close(self.descriptor)


def _open_tun(name: str) -> _Device:
    descriptor = os.open(_TUN, os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(descriptor)
        raise
    return _Device(descriptor)


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")
