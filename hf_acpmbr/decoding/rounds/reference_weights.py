"""The order in which pseudo-references are used, and what the first d of them say of all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...candidates import FloatArray, IntArray

# A pseudo-reference with this share of all draws is always used: alone it can decide.
_CERTAIN = 1 / 24
# How little the weights may move from those of the sampling, in columns: 4 columns of one kind move them halfway.
_RIDGE = 4.0
# Variances count half the columns by what they stand for and half evenly, so that a few heavy ones do not hide others.
_EVEN = 0.5
# With 4 columns drawn at random, those that are always used say nothing of how much the unseen ones vary.
_ENOUGH_DRAWN = 4
# A column that the fit follows nearly exactly would have an infinite residual.
_MOST_LEVERAGE = 0.8
_TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Rule:
    """How scores against the first d pseudo-references become an estimate of the mean over all.

    Args:
        weights: (d,) of the estimate: each column's own share, and `extra`.
        extra: (d,) what each stands for beyond its own share.
        design, solve: (d, p) and (p, d); `design @ (solve @ scores)` is what the profiles explain of the scores.
        keep: (d,) 1 − leverage: residuals divided by it are those of a fit that has not seen the column.
        blame: (d,) how much each residual counts for the variance, summing to 1.
        doubt: the estimate's variance for residuals of variance 1; 0 with all columns.
        degrees: of freedom of that variance.
        effective: number of evenly weighted columns that the unseen ones are judged by.
    """

    weights: FloatArray
    extra: FloatArray
    design: FloatArray
    solve: FloatArray
    keep: FloatArray
    blame: FloatArray
    doubt: float
    degrees: float
    effective: float

    @classmethod
    def complete(cls, shares: FloatArray) -> Rule:
        """Make the rule for all columns: exact."""
        d = len(shares)
        nothing = np.zeros(d)
        even = np.full(d, 1.0 / d)
        return cls(shares, nothing, np.ones((d, 1)), even[None], np.ones(d), even, 0.0, np.inf, np.inf)


@dataclass(eq=False)
class Columns:
    """Pseudo-references in the order of use.

    First those with a large share, then the others as drawn by weight without replacement: the first d are a sample
    whose inclusion probabilities are known ("Summarizing data using bottom-k sketches", Cohen & Kaplan 2007), and each
    stands for its own share and for unseen ones in proportion to w (1 − π) / π. Where pseudo-references are candidates
    too, the scores of all candidates against the very first columns are a *profile* of every text, known for the whole
    population: weights are moved until the sample's mean profile comes close to that of the unseen ("Calibration
    estimators in survey sampling", Deville & Särndal 1992). A sample with too many texts of one kind is corrected so.

    Args:
        shares: (m,) how much every pseudo-reference counts, summing to 1.
        candidate: (m,) which candidate has the same text, -1 for none.
        arrivals: (m,) when each comes; 0 for those that are always used.
        order: (m,) which comes when.
        profiles: (m, p) of the texts, of variance 1 and mean 0; 0 where unknown.
    """

    shares: FloatArray
    candidate: IntArray
    arrivals: FloatArray
    order: IntArray
    profiles: FloatArray
    _rules: dict[int, Rule] = field(default_factory=dict)

    @classmethod
    def draw(
        cls,
        shares: FloatArray,
        ties: IntArray,
        candidate: IntArray,
        random: np.random.Generator,
        heaviest: int = 0,
        came: IntArray | None = None,
    ) -> Columns:
        """Draw an order.

        Args:
            ties: ranks of the texts, so that the order in which they were given has no influence.
            heaviest: how many with the largest shares come first in any case: a rare one can mislead when it is one of
                two, but with them the first are no longer drawn at random, as a stated loss supposes.
            came: (m,) how many had been drawn when each first came, if they came in parts.
        """
        waiting = np.empty(len(shares))
        waiting[np.argsort(ties)] = random.exponential(size=len(shares))
        waiting /= shares
        arrivals = np.where(shares >= _CERTAIN, 0.0, waiting)
        arrivals[np.lexsort((waiting, -shares))[:heaviest]] = 0.0
        order = np.lexsort((waiting, -shares * (arrivals == 0), arrivals))
        if came is not None:
            # Draws come in any order, so those that came earlier may come first: an order by weight as good as another.
            # The next of some texts comes after an exponential time, whose rate is the weight of all that are left.
            always = arrivals == 0
            order = np.lexsort((waiting, -shares * always, came, ~always))
            others = order[np.count_nonzero(always) :]
            left = np.cumsum(shares[others][::-1])[::-1]
            arrivals[others] = np.cumsum(random.exponential(size=len(others)) / left)
        return cls(shares, candidate, arrivals, order, np.empty((len(shares), 0)))

    def __len__(self) -> int:
        return len(self.order)

    def place_of_own(self, candidates: int) -> IntArray:
        """Return (n,) the place of each candidate's own text, m if it is no pseudo-reference."""
        place = np.full(candidates, len(self))
        known = self.candidate[self.order] >= 0
        place[self.candidate[self.order[known]]] = np.flatnonzero(known)
        return place

    def leave_out(self, places: IntArray) -> None:
        """Go on without columns, whose part is known."""
        self.order = np.delete(self.order, places)
        self._rules.clear()

    def learn(self, scores: FloatArray) -> None:
        """Take (n, p) scores of the candidates against the first columns, NaN where unknown, as profiles."""
        found = np.where((self.candidate >= 0)[:, None], scores[self.candidate], np.nan)
        known = ~np.isnan(found).any(axis=1)
        share = self.shares * known
        self._rules.clear()
        self.profiles = np.zeros_like(found)
        if known.sum() < 3:
            return
        centred = found[known] - share[known] @ found[known] / share.sum()
        spread = float(np.sqrt((share[known] @ np.square(centred)).sum() / share.sum()))
        if spread > _TINY * max(1.0, float(np.abs(found[known]).max())):
            self.profiles[known] = centred / spread

    def rule(self, depth: int) -> Rule:
        """Return what to make of the first `depth` columns."""
        if depth not in self._rules:
            self._rules[depth] = self._make(depth)
        return self._rules[depth]

    def _make(self, d: int) -> Rule:
        shares, profiles = self.shares[self.order], self.profiles[self.order]
        rest = float(shares[d:].sum())
        if d == len(self) or rest <= _TINY:
            return Rule.complete(shares[:d])
        always = self.arrivals[self.order[:d]] == 0
        chance = np.where(always, 1.0, -np.expm1(-shares[:d] * self.arrivals[self.order[d]]))
        stands = shares[:d] * (1 - chance) / chance
        start = stands / stands.sum() if stands.sum() > _TINY else np.full(d, 1.0 / d)
        mixed = _EVEN / d + (1 - _EVEN) * start
        size = 1 / float(np.square(mixed).sum())
        design = np.column_stack([np.ones(d), profiles[:d]])
        gap = np.append(1.0, shares[d:] @ profiles[d:] / rest) - start @ design
        ridge = np.diag(np.append(_TINY, np.full(design.shape[1] - 1, _RIDGE / size)))
        weighted = design * mixed[:, None]
        inverse = np.linalg.inv(weighted.T @ design + ridge)
        extra = rest * (start + weighted @ (inverse @ gap))
        bias = rest**2 * float(gap @ inverse @ ridge @ inverse @ gap)
        squares = np.square(extra)
        telling = np.where(always, 0.0, mixed) if np.sum(~always) >= _ENOUGH_DRAWN else mixed
        leverage = np.minimum(np.einsum("ij,jk,ik->i", weighted, inverse, design), _MOST_LEVERAGE)
        return Rule(
            shares[:d] + extra,
            extra,
            design,
            inverse @ weighted.T,
            1 - leverage,
            0.5 * squares / squares.sum() + 0.5 * telling / telling.sum(),
            float(squares.sum() + np.square(shares[d:]).sum()) + bias,
            max(size - float(np.trace(inverse @ weighted.T @ design)), 0.5),
            1 / float(np.square(start).sum()),
        )
