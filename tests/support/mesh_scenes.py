"""Scenes that tests of the whole mesh begin with: a relay answers, main decode answers; and who does now."""

from __future__ import annotations

from typing import Any

from shared.wire import messages as m
from tests.support.mesh_client import Client
from tests.support.whole_mesh import WholeMesh, policy, prompt

RELAYED = policy(md_local_tokens=0, singular=False)
PLAIN = policy(md_local_tokens=0, relay=False)
LONG = 450
"""Output tokens of an answer that outlives everything that is done to it."""


def relaying(*names: str, wan: float = 8e3, ids: int = 20, **more: Any) -> tuple[WholeMesh, Client]:
    """A request that a relay answers while its blocks cross the line."""
    mesh = WholeMesh(*names, wan=wan, router=RELAYED, **more)
    client = mesh.submit(prompt(82), LONG)
    mesh.until_ids(client, ids)
    assert client.owners[-1] is m.Role.RELAY
    return mesh, client


def at_main(*names: str, ids: int = 20, **more: Any) -> tuple[WholeMesh, Client]:
    """A request that main decode answers."""
    mesh = WholeMesh(*names, wan=40e3, router=PLAIN, **more)
    client = mesh.submit(prompt(82), LONG)
    mesh.until_ids(client, ids)
    assert client.owners[-1] is m.Role.MAIN
    return mesh, client


def nodes(client: Client) -> list[str]:
    """Who drew, in turn."""
    return [part["node"] for part in client.trace["segments"]]


def owner(mesh: WholeMesh, client: Client) -> str:
    """Who draws now."""
    leg = mesh.core.requests[client.rid].drawing
    return "" if leg is None else leg.node
