"""The engine's compiled half, for tests; they are skipped where there is no compiler to make it."""

import functools

import pytest

from shared.engine.native import build
from shared.engine.native.library import Library
from shared.errors import BuildError


@functools.cache
def compiled(*, matrix_unit: bool = True) -> Library:
    """Compiled at the first call on a machine, else from the cache.

    `matrix_unit`: computes bfloat16 there where the processor has one; False: on vectors, as others do.
    """
    try:
        return Library(build.library(), matrix_unit=matrix_unit)
    except BuildError as error:
        if "no C++ compiler" not in str(error):
            raise
        pytest.skip(str(error))
