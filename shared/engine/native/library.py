"""The compiled functions and the structures that they take (`model.h`), as ctypes sees them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_uint32, c_void_p
from pathlib import Path


class Weight(Structure):
    """`panels`: address; `bias`: address or None. Of a gated one `columns` are those of the result."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("columns", c_int64),
        ("depth", c_int64),
        ("count", c_int64),
    )


class Layer(Structure):
    """Norms: addresses of float32."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("qkv", Weight),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("output", Weight),
        ("mlp_norm", c_void_p),
        ("gate_up", Weight),
        ("down", Weight),
        ("window", c_int64),
    )


class Model(Structure):
    """Sizes of a model and the address of its layers."""

    _fields_ = (
        ("layers", c_void_p),
        ("count", c_int64),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("ffn", c_int64),
        ("eps", c_float),
        ("narrow", c_int32),
        ("matrix_unit", c_int32),
    )


class Part(Structure):
    """One context's new tokens; distances in elements."""

    _fields_ = (
        ("keys", c_void_p),
        ("value_offset", c_int64),
        ("layer_stride", c_int64),
        ("head_stride", c_int64),
        ("row", c_int64),
        ("rows", c_int64),
        ("start", c_int64),
    )


class Step(Structure):
    """Rows of a step."""

    _fields_ = (
        ("parts", c_void_p),
        ("count", c_int64),
        ("rows", c_int64),
        ("hidden", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("threads", c_int32),
    )


class Library:
    """The functions of one compiled library. They hold no state, and run without the interpreter's lock.

    `matrix_unit`: bfloat16 is multiplied on one where processor, kernel and compiler know it. Raises OSError
    where `path` is no such library.
    """

    def __init__(self, path: Path, *, matrix_unit: bool = True) -> None:
        library = ctypes.CDLL(str(path))
        library.native_lanes.restype = c_int32
        self.lanes: int = library.native_lanes()
        library.native_matrix_unit.restype = c_int32
        self.matrix_unit = matrix_unit and bool(library.native_matrix_unit())
        self.room = library.native_room
        self.room.restype = c_int64
        self.room.argtypes = (POINTER(Model), POINTER(Step))
        self.extend = library.native_extend
        self.extend.restype = None
        self.extend.argtypes = (POINTER(Model), POINTER(Step), c_void_p)
        self.scores = library.native_scores
        self.scores.restype = None
        self.scores.argtypes = (
            POINTER(Model),
            POINTER(Weight),
            c_void_p,
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
            c_int32,
        )
        self.contenders = library.native_contenders
        self.contenders.restype = c_int64
        self.contenders.argtypes = (c_void_p, c_int64, c_void_p, c_uint32, c_uint32, c_void_p, c_void_p)
