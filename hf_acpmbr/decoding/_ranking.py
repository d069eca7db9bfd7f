"""How candidates are ordered when some were dropped on the way."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..candidates import FloatArray, IntArray
from ..utilities import Utility


def gains(utility: Utility, scores: FloatArray) -> FloatArray:
    """Scores with the sign that makes more better."""
    return scores if utility.higher_is_better else -scores


def best_first(*keys: npt.ArrayLike) -> IntArray:
    """Indices by the first key, then the second, …; more is better, NaN is last, ties keep their order."""
    columns = [-np.asarray(key, dtype=np.float64) for key in reversed(keys)]
    return np.asarray(np.lexsort(columns), dtype=np.int64)


def top(values: FloatArray, count: int) -> IntArray:
    """Sorted indices of the `count` highest values; ties keep the earlier one."""
    return np.sort(best_first(values)[:count])
