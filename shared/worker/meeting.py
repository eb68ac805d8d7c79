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

    def on_peers(self, message: Peers) -> None:
        """A router names all workers: those that KV goes to are dialled where no session is kept."""
        for node, role, datacenter, address in message.nodes:
            if role in SENDS_TO[self._site.role] and self._site.peers.get(node) is None and address:
                self._site.outbox.dial(node, role, datacenter, address)
