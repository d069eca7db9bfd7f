"""Time as a budget: how many more scores are expected to be done within a limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..utilities import Scorer


class Clock:
    """Runs from the moment it is made. What each scorer takes per score is known from its last round."""

    def __init__(self, limit: float | None, now: Callable[[], float]) -> None:
        self.limit = math.inf if limit is None else limit
        self._now, self._start = now, now()
        self._pace: dict[int, float] = {}

    @property
    def seconds(self) -> float:
        """Since it was made."""
        return self._now() - self._start

    @contextmanager
    def round(self, scorer: Scorer, number: int) -> Iterator[None]:
        """Around a round of `number` scores."""
        before = self.seconds
        yield
        self._pace[id(scorer)] = (self.seconds - before) / number

    def affords(self, scorer: Scorer, most: int, share: float = 1.0) -> int:
        """At most `most` more scores, as many as should be done before `share` of the limit is over."""
        pace = self._pace.get(id(scorer), 0.0)
        left = max(share * self.limit - self.seconds, 0.0)
        return most if most * pace <= left else int(left / pace)
