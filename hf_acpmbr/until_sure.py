"""Draw until sure: candidates come in growing parts until the stated loss covers what more of them could gain.

With `num_candidates="auto"` a source gets some candidates, is decided, and is told what its choice may still lose
against full MBR over `max_candidates` draws: among the candidates it has (`Decision.expected_regret`) and because of
those it has not (`Decision.draws`). If both together are within the stated loss it is done, else more candidates are
drawn, as many as the loss is forecast to need. Scores are kept, and the draws are those that one call would have made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .candidates import Candidates
from .decision import Decision
from .decoding import Decoder, Texts
from .decoding.draw_loss import Part, next_draws
from .sampling import Request, Samples
from .sampling.base import Sampler
from .scoring import Source, Utility, decide_together

# Draws of the first part: fewer say too little of the upper tail, and easy sources need no more.
_FIRST_DRAWS = 64


class Asking:
    """The candidates of one source, and a function that draws n more of them."""

    grain = 1

    def __init__(self, candidates: Candidates, more: Callable[[int], Texts]) -> None:
        self._pool, self._more = candidates, more
        self.first = candidates.total

    def grow(self, wanted: Mapping[int, int]) -> dict[int, Candidates]:
        """Bring the source to a number of draws, and return all its candidates."""
        if (missing := wanted[0] - self._pool.total) > 0:
            drawn = Candidates.of(self._more(missing))
            if drawn.total < missing:
                raise ValueError(f"more({missing}) gave {drawn.total} candidates: give as many as it asks for")
            self._pool = self._pool.with_more(drawn)
        return {0: self._pool}


class Drawing:
    """Samples of every source of a request.

    Args:
        read: makes candidates of samples.
        beams: of the search whose output is added to the samples of each source; False adds none.

    Attributes:
        grain: every number of draws is a multiple of it.
        seconds: spent on drawing so far.
    """

    first = 0

    def __init__(
        self,
        request: Request,
        sampler: Sampler,
        seed: int,
        read: Callable[[Samples], Candidates],
        beams: bool | int,
    ) -> None:
        self.grain = sampler.grain(request)
        if not self.grain:
            raise ValueError(
                f"sampler {sampler.name!r} draws no further samples of a source, which num_candidates='auto' needs: "
                "give a number of candidates, or another sampler"
            )
        self._request, self._sampler, self._seed, self._read, self._beams = request, sampler, seed, read, beams
        self._drawn: dict[int, Samples] = {}
        self._outputs: list[Samples] = []
        self.seconds = 0.0

    @property
    def rows(self) -> int:
        """Decoder rows spent so far."""
        return sum(samples.model_rows for samples in [*self._drawn.values(), *self._outputs])

    def grow(self, wanted: Mapping[int, int]) -> dict[int, Candidates]:
        """Bring each of these sources, by its number, to a number of draws, and return all its candidates."""
        start = time.perf_counter()
        if self._beams and not self._outputs:
            from .sampling.loops import own_outputs

            self._outputs = own_outputs(self._request, self._beams)
        had = [self._drawn[k].total if k in self._drawn else 0 for k in range(len(self._request.keys))]
        ranges = [range(count, wanted.get(k, count)) for k, count in enumerate(had)]
        new = self._sampler.sample_more(self._request, ranges, self._seed)
        for k in wanted:
            self._drawn[k] = self._drawn[k].plus(new[k]) if k in self._drawn else new[k]
        pools = {k: self._drawn[k].plus(self._outputs[k]) if self._outputs else self._drawn[k] for k in wanted}
        candidates = {k: self._read(samples) for k, samples in pools.items()}
        self.seconds += time.perf_counter() - start
        return candidates


def decide_until_sure(
    pools: Asking | Drawing,
    start: Callable[[int, Candidates, Part], Source[Decision]],
    bound: float,
    sources: int,
    most: int,
    sure: str,
    joined: bool,
) -> list[Decision]:
    """Draw and decide until every source is sure.

    Args:
        pools: the candidates of S sources.
        start: makes a source of its number and these candidates.
        bound: the stated loss, in the target's units.
        sources: S.
        most: the draws at which a source is done in any case.
        sure: what the stated loss bounds (`Sampling.sure`).
        joined: see `decide_together`.
    """

    def rounded(draws: int) -> int:
        return min(-(-draws // pools.grain) * pools.grain, most)

    wanted = dict.fromkeys(range(sources), rounded(max(_FIRST_DRAWS, pools.first)))
    came: list[dict[str, int]] = [{} for _ in range(sources)]
    running: dict[int, Source[Decision]] = {}
    done: dict[int, Decision] = {}
    while wanted:
        for k, pool in pools.grow(wanted).items():
            came[k] = dict.fromkeys(pool.texts, wanted[k]) | came[k]
            running[k] = start(k, pool, Part(wanted[k], most, sure, came[k], running.get(k)))
        following: dict[int, int] = {}
        decisions = decide_together([running[k] for k in wanted], joined=joined)
        for (k, drawn), decision in zip(wanted.items(), decisions, strict=True):
            loss = (decision.expected_regret or 0.0) + (0.0 if decision.draws is None else decision.draws.expected)
            meter = running[k].meter
            if drawn >= most:
                why = f"all {drawn:,} draws taken"
            elif loss <= bound:
                why = f"{drawn:,} of at most {most:,} draws, expected loss below {bound:g} in all"
            elif meter.seconds >= meter.limit:
                why = f"{drawn:,} of at most {most:,} draws, {meter.limit:g} seconds are over"
            else:
                following[k] = rounded(next_draws(loss, bound, drawn, most))
                continue
            done[k] = decision.changed(status=f"{decision.status}; {why}")
        wanted = following
    return [done[k] for k in range(sources)]


def stated_loss(decoder: Decoder, target: Utility | None) -> float:
    """Return the loss at which a decoder may stop; refuse one that states none."""
    bound = None if target is None else decoder.loss_bound(target)
    if bound is None:
        raise ValueError(
            f"num_candidates='auto' stops at a stated loss, and decoder {decoder.name!r} with these settings states "
            "none: take recipe='auto', decoder='mbr', max_regret=..., or a number of candidates"
        )
    return bound
