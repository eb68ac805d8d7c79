"""The engine's compiled half, for tests; they are skipped where there is no compiler to make it."""

import functools

import pytest

from shared.engine.native import build
from shared.engine.native.library import Library
from shared.errors import BuildError


@functools.cache
def compiled() -> Library:
    """Compiled at the first call on a machine, else from the cache."""
    try:
        return Library(build.library())
    except BuildError as error:
        if "no C++ compiler" not in str(error):
            raise
        pytest.skip(str(error))
