"""Training data from decisions: pairs of a better and a worse text in TRL's columns, and MBR's choices as targets.

Preference pairs from MBR's ranking, for DPO: Yang et al. 2023, https://arxiv.org/abs/2311.08380. MBR's choices as
targets of fine-tuning: Finkelstein et al. 2023, https://arxiv.org/abs/2309.10966.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..config import Configured, flag, integer, number, one_of, optional, setting
from ..decoding import Decision
from .prompts import has_text

if TYPE_CHECKING:
    from ..scoring import Utility

PAIRS = ("best-worst", "best-median", "best-beam", "top-k")
COLUMNS = ("prompt", "chosen", "rejected", "chosen_utility", "rejected_utility", "margin")


@dataclass(frozen=True)
class Scored:
    """A text and its expected utility, on the utility's own scale."""

    text: str
    expected: float


@dataclass(frozen=True)
class Pair:
    """A better and a worse text. `margin`: by how much the expected utility is better, above 0."""

    chosen: Scored
    rejected: Scored
    margin: float


@dataclass(frozen=True)
class Preferences(Configured):
    """Which pairs to take from a ranking, and how to write them.

    Args:
        pairs: "best-worst"; "best-median"; "best-beam", the text of a beam search (or any other text to improve on);
            "top-k", the best against the worst, the second best against the second worst, …, k pairs.
        k: how many pairs "top-k" takes.
        min_margin: pairs whose expected utilities differ by no more are left out, on the utility's own scale; 0 leaves
            out ties.
        max_similarity: pairs of texts that are more alike than this are left out, from 0 to 1: the share of characters
            in common, without case, punctuation and white space. 1 leaves out only texts that differ in nothing else.
        conversational: TRL's conversational format (messages with roles) instead of plain texts; None follows the
            `chat` of the function that maps.
        beam_column: where "best-beam" finds its text.
    """

    pairs: str = setting("best-worst", one_of(*PAIRS))
    k: int | None = setting(None, optional(integer(1)))
    min_margin: float = setting(0.0, number(0))
    max_similarity: float = setting(0.95, number(0, 1))
    conversational: bool | None = setting(None, optional(flag))
    beam_column: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.k is not None) != (self.pairs == "top-k"):
            raise ValueError(f"k belongs to pairs='top-k', which needs it: got pairs={self.pairs!r} and k={self.k}")
        if (self.beam_column is not None) != (self.pairs == "best-beam"):
            raise ValueError(
                "beam_column belongs to pairs='best-beam', which needs it: got "
                f"pairs={self.pairs!r} and beam_column={self.beam_column!r}"
            )

    @classmethod
    def of(cls, given: bool | str | Mapping[str, object] | Preferences | None) -> Preferences | None:
        """Take what `map_fn(preferences=)` takes: True, the name of the pairs, a dict of settings, or the object."""
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, str):
            return cls(pairs=given)
        if isinstance(given, Mapping):
            return cls.from_dict(given)
        if not isinstance(given, Preferences):
            raise ValueError(f"preferences must be True, a name ({', '.join(PAIRS)}) or settings, got {given!r}")
        return given

    def select(self, decision: Decision, beam: Scored | None = None) -> list[Pair]:
        """Return the pairs of one source, best first; empty if there are only ties, near-duplicates and blank texts.

        Args:
            beam: the text that "best-beam" compares with; `score_text` makes one.
        """
        if (beam is not None) != (self.pairs == "best-beam"):
            raise ValueError(f"beam belongs to pairs='best-beam', which needs it: got pairs={self.pairs!r}")
        ranked = [Scored(entry.text, entry.expected) for entry in decision.nbest(len(decision.candidates))]
        # A decoder that drops candidates early has no estimate of them, and a pair with a blank text would teach
        # nothing but not to be blank: the next best or worst takes its place.
        ranked = [entry for entry in ranked if math.isfinite(entry.expected) and has_text(entry.text)]
        if beam is not None:
            compared = [(ranked[0], beam)] if ranked and has_text(beam.text) else []
        elif self.pairs == "best-median":
            compared = [(ranked[0], ranked[len(ranked) // 2])] if ranked else []
        else:
            compared = [(ranked[k], ranked[-1 - k]) for k in range(min(self.k or 1, len(ranked) // 2))]
        pairs = []
        for chosen, rejected in compared:
            gain = chosen.expected - rejected.expected
            margin = gain if decision.higher_is_better else -gain
            if margin > self.min_margin and not near_duplicates(chosen.text, rejected.text, self.max_similarity):
                pairs.append(Pair(chosen, rejected, margin))
        return pairs

    def row(self, pair: Pair, prompt: str, conversational: bool = False) -> dict[str, object]:
        """Return one row with TRL's `prompt`, `chosen`, `rejected`, and the expected utilities and `margin`.

        TRL's RewardTrainer reads `margin` too.
        """
        messages = conversational if self.conversational is None else self.conversational
        texts = (prompt, pair.chosen.text, pair.rejected.text)
        roles = ("user", "assistant", "assistant")
        written = (
            [{"role": role, "content": text}] if messages else text for role, text in zip(roles, texts, strict=True)
        )
        return dict(zip(COLUMNS, (*written, pair.chosen.expected, pair.rejected.expected, pair.margin), strict=True))


def near_duplicates(first: str, second: str, max_similarity: float) -> bool:
    """Tell whether texts differ in case, punctuation and white space alone, or are more alike than `max_similarity`."""
    one, other = _bare(first), _bare(second)
    if one == other:
        return True
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    # The first two are quick upper bounds of the third.
    ratios = (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    return all(ratio() > max_similarity for ratio in ratios)


def _bare(text: str) -> str:
    letters = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in letters if unicodedata.category(c)[0] not in "PZC")


def score_text(decision: Decision, text: str, score: Callable[[list[str], list[str]], npt.ArrayLike]) -> Scored:
    """Score a text from elsewhere, such as a beam search: its expected utility over the decision's candidates.

    Args:
        score: the utility, `score(hypotheses, references)`; not called for a candidate that has an estimate.
    """
    pool = decision.candidates
    if text in pool.texts and math.isfinite(known := float(decision.expected[pool.texts.index(text)])):
        return Scored(text, known)
    scores = np.asarray(score([text] * len(pool), list(pool.texts)), dtype=np.float64)
    return Scored(text, float(scores @ pool.weights))


def preference_rows(
    settings: Preferences,
    columns: Mapping[str, Sequence[object]],
    decisions: Sequence[Decision | None],
    sources: Sequence[str],
    prompts: Sequence[str],
    target: Utility | None,
    conversational: bool = False,
) -> dict[str, list[object]]:
    """Return all `columns` with one row per pair: rows without a pair are gone, those with several are repeated.

    Args:
        columns: aligned with the decisions, as a batch of a dataset has them.
        sources, prompts: what was translated and what the model was asked, one per decision.
        target: the utility of texts that are not candidates.
        conversational: what the settings leave open.
    """
    beam_column = settings.beam_column
    if beam_column is not None and beam_column not in columns:
        raise ValueError(f"no column {beam_column!r} in the dataset for the text of the beam search")
    out: dict[str, list[object]] = {name: [] for name in (*columns, *COLUMNS)}
    for row, decision in enumerate(decisions):
        if decision is None:
            continue
        beam = None
        if beam_column is not None:
            text = columns[beam_column][row]
            if not isinstance(text, str):
                raise ValueError(f"row {row} of the batch has no text in {beam_column!r}: got {text!r}")
            if target is None:
                raise ValueError("preferences against a beam search need a target utility: ACPMBR(target=...)")
            beam = score_text(decision, text, partial(target.score, sources=[sources[row]] * len(decision.candidates)))
        for pair in settings.select(decision, beam):
            values = {name: column[row] for name, column in columns.items()}
            for name, value in {**values, **settings.row(pair, prompts[row], conversational)}.items():
                out[name].append(value)
    return out


def distillation_rows(
    sources: Sequence[str], decisions: Sequence[Decision | None], best: int = 1
) -> dict[str, list[object]]:
    """Return columns `source`, `target`, `utility` for Seq2SeqTrainer: the `best` texts of each source.

    Sources without a decision (blank ones) and texts without any character are left out.
    """
    if len(sources) != len(decisions):
        raise ValueError(f"{len(sources)} sources for {len(decisions)} decisions: give one per source")
    rows: dict[str, list[object]] = {"source": [], "target": [], "utility": []}
    for source, decision in zip(sources, decisions, strict=True):
        for entry in [] if decision is None else decision.nbest(best):
            if has_text(entry.text):
                for column, value in zip(rows, (source, entry.text, entry.expected), strict=True):
                    rows[column].append(value)
    return rows
