"""The ids that a seeded draw can choose, found in compiled code; which it is, `sampler` decides exactly."""

from __future__ import annotations

import ctypes

import numpy as np

from shared.engine.api import Draw
from shared.engine.native.library import Library
from shared.engine.sampler import Ids, Scores, counter_of, key_of


class NativeContenders:
    """`Contenders` of the sampler."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __call__(self, scores: Scores, draw: Draw) -> Ids:
        count = len(scores)
        keys = np.empty(count, dtype=np.float32)
        ids = np.empty(count, dtype=np.int64)
        counter = (ctypes.c_uint32 * 3)(*counter_of(draw))
        found = self._library.contenders(
            scores.ctypes.data, count, counter, *key_of(draw), keys.ctypes.data, ids.ctypes.data
        )
        return ids[:found]
