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
import multiprocessing
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import TracebackType

from benchmarks.wan.forwarder import Cut, Forwarder
from benchmarks.wan.impairment import Impairment

MTU = 65_000
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
        self._pipe: Pipe | None = None
        self._process: multiprocessing.process.BaseProcess | None = None
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
        await asyncio.to_thread(self._undo.close)

    # --- as the proxy's ---

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

    def _tell(self, *command: str | float) -> None:
        assert self._pipe is not None, "the line has not begun"
        self._pipe.send(command)
        self._answer = self._pipe.recv()

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
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        forwarder = Forwarder((devices[0], devices[1]), self._impairments, self._seed, self._cuts)
        self._process = context.Process(target=_forward, args=(forwarder, theirs, self._pipe), daemon=True)
        self._process.start()
        theirs.close()
        self._undo.callback(self._stop)

    def _stop(self) -> None:
        assert self._pipe is not None
        assert self._process is not None
        with contextlib.suppress(OSError, EOFError):
            self._tell("end")
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()


def _forward(forwarder: Forwarder, pipe: Pipe, other: Pipe) -> None:
    other.close()
    with contextlib.suppress(KeyboardInterrupt):
        forwarder.run(pipe)


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
