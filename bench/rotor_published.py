"""Rotor's published solver on a chain, by the transcription in native/rotor.c, compiled with -O3 -march=native."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
import numpy.typing as npt
from bench.native import load

import memsched as ms

Bytes = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


@cache
def _table() -> ctypes._CFuncPtr:
    function = load("rotor.c").rotor_table
    reals, words = np.ctypeslib.ndpointer(np.float64), np.ctypeslib.ndpointer(np.int64)
    number = ctypes.c_long
    function.argtypes = [number, number, reals, reals, words, words, words, words, reals, words]
    function.restype = None
    return function


def rotor_table(
    forward: Seconds,
    backward: Seconds,
    x: Bytes,
    xb: Bytes,
    forward_scratch: Bytes,
    backward_scratch: Bytes,
    slots: int,
) -> tuple[Seconds, Bytes]:
    """Values and decisions, shape [slots + 1, stages, stages]; x and xb have one entry more than stages."""
    stages = len(forward)
    values = np.zeros((slots + 1, stages, stages))
    decisions = np.zeros((slots + 1, stages, stages), np.int64)
    _table()(stages, slots, forward, backward, x, xb, forward_scratch, backward_scratch, values, decisions)
    return values, decisions


def in_slots(chain: ms.Chain, capacity: int, slots: int) -> tuple[Seconds, Seconds, Bytes, Bytes, Bytes, Bytes]:
    """The first six arguments of `rotor_table`: the chain and its loss, sizes rounded up to slots.

    The solver knows one scratch of a forward, that of saving is taken, and gradients as large as their activations.
    """
    width = capacity / slots

    def rounded(column: Bytes, *, before: bool = False) -> Bytes:
        padded = [0, *column, 0] if before else [*column, 0]
        return np.ceil(np.array(padded) / width).astype(np.int64)

    return (
        np.append(chain.forward_time, 0.0),
        np.append(chain.backward_time, 0.0),
        rounded(chain.activation),
        rounded(chain.saved, before=True),
        rounded(chain.forward_overhead),
        rounded(chain.backward_overhead),
    )


def published_value(chain: ms.Chain, capacity: int, slots: int) -> float:
    """Least time in seconds, infinite where there is no plan; builds the whole table."""
    instance = in_slots(chain, capacity, slots)
    values, _ = rotor_table(*instance, slots)
    free = slots - int(instance[2][0])
    return float(values[free, 0, -1]) if free >= 0 else float("inf")
