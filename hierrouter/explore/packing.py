"""Arrays as text, small enough for a page.

In: arrays of numbers. Out: JSON values with the numbers as base64, each in the smallest type that
holds them exactly; floats as numbers of few distinct values. Not covered: unpacking, which is
`templates/data.js`.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES = ("<u1", "<u2", "<u4", "<f8")  # little-endian, as browsers read them


def whole_numbers(values: NDArray[np.int64]) -> dict[str, str]:
    """Numbers >= 0 in the smallest type; those of 2**32 and more as float64, exact up to 2**53.

    Returns:
        `type` and `data`, the values in C order.
    """
    largest = int(values.max(initial=0))
    kind = TYPES[sum(largest >= limit for limit in (2**8, 2**16, 2**32))]
    return _packed(values, kind)


def numbers(values: NDArray[np.float64]) -> dict[str, Any]:
    """Floats, each to the last bit: the distinct ones, and for each value which of them it is.

    Returns:
        `values` and `code`, both packed.
    """
    distinct, code = np.unique(values, return_inverse=True)
    return {"values": _packed(distinct, "<f8"), "code": whole_numbers(code.reshape(values.shape))}


def _packed(values: NDArray[Any], kind: str) -> dict[str, str]:
    data = np.ascontiguousarray(values, dtype=kind).tobytes()
    return {"type": kind, "data": base64.b64encode(data).decode("ascii")}
