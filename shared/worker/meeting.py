"""How this worker presents itself to its routers, and whom it dials for KV."""

from __future__ import annotations

import msgspec

from shared.wire.messages import Announce, Peers, Role
from shared.worker.worker_site import Site

SENDS_TO: dict[Role, tuple[Role, ...]] = {
    Role.PREFILL: (Role.RELAY, Role.MAIN),
    Role.RELAY: (Role.MAIN,),
    Role.MAIN: (),
    Role.ROUTER: (),
}
"""Who dials whom where the configuration does not say: the one that sends KV."""


class Meeting:
    """Announces, and peers named by routers."""

    def __init__(self, site: Site, announce: Announce) -> None:
        self._site = site
        self._announce = announce
        self._named: dict[str, set[str]] = {}  # by router: whom it knows of those that KV goes to
        self._dialled: dict[str, str] = {}  # those of them that were dialled from here -> where

    def now(self) -> Announce:
        """The Announce as it would be sent now."""
        return msgspec.structs.replace(
            self._announce,
            draining=self._site.draining,
            peers=tuple(sorted(self._site.peers.workers())),
        )

    def greet(self, router: str) -> None:
        """A router's session has opened."""
        self._site.outbox.send(router, self.now())

    def tell(self) -> None:
        """Something in the Announce has changed."""
        for router in self._site.peers.routers():
            self.greet(router)

    def on_peers(self, router: str, message: Peers) -> None:
        """A router names all workers: those that KV goes to are dialled where no session is kept, or one to
        an address that they have left."""
        named = self._named[router] = set()
        for node, role, datacenter, address in message.nodes:
            if role in SENDS_TO[self._site.role] and address:
                named.add(node)
                moved = self._dialled.get(node, address) != address
                if moved or self._site.peers.get(node) is None:
                    self._dialled[node] = address
                    self._site.outbox.dial(node, role, datacenter, address)
        self._let_go()

    def lost(self, node: str) -> None:
        """A session has ended. What a lost router knew counts until another one, or it, speaks again."""
        if self._named.pop(node, None) is None:
            self._let_go()

    def _let_go(self) -> None:
        """Nobody names them any more: they would be dialled for ever."""
        for node in sorted(self._dialled.keys() - set().union(*self._named.values())):
            if self._site.peers.get(node) is None:
                del self._dialled[node]
                self._site.outbox.undial(node)
