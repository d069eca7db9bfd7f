"""Training data from decisions: pairs of a better and a worse text in TRL's columns, and MBR's choices as targets.

Preference pairs from MBR's ranking, for DPO: Yang et al. 2023, https://arxiv.org/abs/2311.08380. MBR's choices as
targets of fine-tuning: Finkelstein et al. 2023, https://arxiv.org/abs/2309.10966.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ..config import Configured, flag, integer, number, one_of, optional, setting
from ..decoding import Decision
from .prompts import has_text

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
        """From what `map_fn(preferences=)` takes: True, the name of the pairs, a dict of settings, or the object."""
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
        """The pairs of one source, best first; empty if there are only ties, near-duplicates and blank texts.

        Args:
            beam: the text that "best-beam" compares with; `score_text` makes one.
        """
        if (beam is not None) != (self.pairs == "best-beam"):
            raise ValueError(f"beam belongs to pairs='best-beam', which needs it: got pairs={self.pairs!r}")
        pairs = []
        for chosen, rejected in self._candidates(decision, beam):
            gain = chosen.expected - rejected.expected
            margin = gain if decision.higher_is_better else -gain
            if margin > self.min_margin and not near_duplicates(chosen.text, rejected.text, self.max_similarity):
                pairs.append(Pair(chosen, rejected, margin))
        return pairs

    def _candidates(self, decision: Decision, beam: Scored | None) -> Iterator[tuple[Scored, Scored]]:
        ranked = [Scored(entry.text, entry.expected) for entry in decision.nbest(len(decision.candidates))]
        # A decoder that drops candidates early has no estimate of them, and a pair with a blank text would teach
        # nothing but not to be blank: the next best or worst takes its place.
        ranked = [entry for entry in ranked if math.isfinite(entry.expected) and has_text(entry.text)]
        if not ranked:
            return
        if beam is not None:
            if has_text(beam.text):
                yield ranked[0], beam
        elif self.pairs == "best-median":
            yield ranked[0], ranked[len(ranked) // 2]
        else:
            for k in range(min(self.k or 1, len(ranked) // 2)):
                yield ranked[k], ranked[-1 - k]

    def row(self, pair: Pair, prompt: str, conversational: bool = False) -> dict[str, object]:
        """One row with TRL's `prompt`, `chosen`, `rejected`, and the expected utilities and `margin`.

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
    """Whether two texts are the same but for case, punctuation and white space, or more alike than `max_similarity`."""
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
    """A text from elsewhere, such as a beam search, with its expected utility over the decision's candidates.

    Args:
        score: the utility, `score(hypotheses, references)`; not called for a candidate that has an estimate.
    """
    pool = decision.candidates
    if text in pool.texts and math.isfinite(known := float(decision.expected[pool.texts.index(text)])):
        return Scored(text, known)
    scores = np.asarray(score([text] * len(pool), list(pool.texts)), dtype=np.float64)
    return Scored(text, float(scores @ pool.weights))


def preference_columns(
    settings: Preferences,
    columns: Mapping[str, Sequence[object]],
    decisions: Sequence[Decision | None],
    prompts: Sequence[str],
    score: Callable[[int, list[str], list[str]], npt.ArrayLike],
    conversational: bool = False,
) -> dict[str, list[object]]:
    """All `columns` with one row for each pair: rows without a pair are gone, those with several are repeated.

    Args:
        columns: aligned with the decisions, as a batch of a dataset has them.
        prompts: what the model was asked, one for each decision.
        score: the utility, `score(row, hypotheses, references)`.
        conversational: what the settings leave open.
    """
    if settings.beam_column is not None and settings.beam_column not in columns:
        raise ValueError(f"no column {settings.beam_column!r} in the dataset for the text of the beam search")
    out: dict[str, list[object]] = {name: [] for name in (*columns, *COLUMNS)}
    for row, decision in enumerate(decisions):
        if decision is None:
            continue
        beam = None
        if settings.beam_column is not None:
            text = columns[settings.beam_column][row]
            if not isinstance(text, str):
                raise ValueError(f"row {row} of the batch has no text in {settings.beam_column!r}: got {text!r}")
            beam = score_text(decision, text, partial(score, row))
        for pair in settings.select(decision, beam):
            values = {name: column[row] for name, column in columns.items()}
            for name, value in {**values, **settings.row(pair, prompts[row], conversational)}.items():
                out[name].append(value)
    return out


def distillation_rows(
    sources: Sequence[str], decisions: Sequence[Decision | None], best: int = 1
) -> dict[str, list[object]]:
    """Columns `source`, `target`, `utility` for Seq2SeqTrainer: the `best` texts of each source.

    Sources without a decision (blank ones) and texts without any character are left out.
    """
    if len(sources) != len(decisions):
        raise ValueError(f"{len(sources)} sources for {len(decisions)} decisions: give one for each")
    rows: dict[str, list[object]] = {"source": [], "target": [], "utility": []}
    for source, decision in zip(sources, decisions, strict=True):
        for entry in [] if decision is None else decision.nbest(best):
            if has_text(entry.text):
                for column, value in zip(rows, (source, entry.text, entry.expected), strict=True):
                    rows[column].append(value)
    return rows
