"""Who may come in, for each model by itself: a pool without room keeps no request of another waiting, and its
queue refuses none. Knows no workers.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.router.admission import Admission
from shared.policy.config import RouterPolicy


class Admissions:
    """An `Admission` for each served name; names are few, for requests of others get no further than their
    pools.
    """

    def __init__(self, policy: RouterPolicy) -> None:
        self._policy = policy
        self._by_model: dict[str, Admission] = {}

    def of(self, model: str) -> Admission:
        """That of a served name."""
        found = self._by_model.get(model)
        if found is None:
            found = self._by_model[model] = Admission(self._policy)
        return found

    def all(self) -> Iterable[Admission]:
        """Those of all names that were asked for so far."""
        return self._by_model.values()

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return sum(len(one.room) for one in self.all())

    @property
    def refused(self) -> int:
        """Requests that were sent away."""
        return sum(one.refused for one in self.all())
