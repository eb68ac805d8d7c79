"""Asks a running router for its picture, by the address and the admin key of the mesh file.

Every way in which that fails says what was wrong and what to do.
"""

from __future__ import annotations

import http.client
from dataclasses import dataclass

import msgspec

from services.router.picture import Picture
from shared.errors import ConfigError, NotAnswered
from shared.runtime.settings import MeshConfig, NodeConfig, split_address
from shared.worker.links import key_file

PATH = "/admin/state"
TIMEOUT = 5.0
"""Seconds until a router that does not answer is given up."""

MOST_BYTES = 16 << 20
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_FINE, _KEY, _NOT_THERE = 200, 401, 404


@dataclass(frozen=True, slots=True)
class Target:
    """Where a router's admin endpoints are, and their key."""

    node: str
    host: str
    port: int
    key: str
    key_name: str
    """The file it was read from, for messages."""

    @property
    def place(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def target_of(mesh: MeshConfig, node: NodeConfig) -> Target:
    """From the mesh file. Raises ConfigError where it does not say enough."""
    path = f"nodes.{node.name}.http"
    host, port = split_address(node.http, path)
    if port == 0:
        raise ConfigError(
            path, f"{node.http!r} takes any free port, which is not known here; set a fixed one"
        )
    name = mesh.http.admin_key_file
    key = key_file(name, "http.admin_key_file")
    if not key:
        why = f"{name} is empty" if name else "is not set: the router serves no admin endpoints without it"
        raise ConfigError("http.admin_key_file", f"{why}; write a key to a file and name it there")
    return Target(node.name, _EVERYWHERE.get(host, host), port, key, name)


def ask(target: Target) -> bytes:
    """The picture as JSON. Raises NotAnswered."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT)
    try:
        connection.request("GET", PATH, headers={"authorization": f"Bearer {target.key}"})
        answer = connection.getresponse()
        body = answer.read(MOST_BYTES)
    except ConnectionRefusedError as error:
        raise NotAnswered(
            f"nothing listens on {target.place}: {target.node} is not running there; start it with "
            f"python -m services.router --config MESH --node {target.node}"
        ) from error
    except TimeoutError as error:
        raise NotAnswered(
            f"{target.node} on {target.place} has not answered for {TIMEOUT:g} s; look at its log and /health"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotAnswered(
            f"{target.node} on {target.place} cannot be asked: {str(error) or type(error).__name__}; check "
            f"nodes.{target.node}.http"
        ) from error
    finally:
        connection.close()
    if answer.status == _FINE:
        return body
    raise NotAnswered(_refusal(target, answer.status))


def _refusal(target: Target, status: int) -> str:
    if status == _KEY:
        return (
            f"{target.node} on {target.place} does not know the key in {target.key_name}: it was started "
            "with another one; restart it, or use the file that it was started with"
        )
    if status == _NOT_THERE:
        return (
            f"{target.node} on {target.place} has no {PATH}: it was started without http.admin_key_file, or "
            "is of another version, or something else listens there"
        )
    return f"{target.node} on {target.place} answered {PATH} with status {status}; look at its log"


def read(body: bytes, target: Target) -> Picture:
    """The picture from its JSON. Raises NotAnswered where it is none."""
    try:
        return msgspec.json.decode(body, type=Picture)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAnswered(
            f"{target.place} answers {PATH} with what is no picture of a router of this version: {error}"
        ) from error
