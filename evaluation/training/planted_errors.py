"""Sentences with one planted error, as translators make them: a word wrong, missing, doubled, moved, in the wrong form.

What is likely to be mistaken for what is read from a corpus: words between the same neighbours, words that start alike.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ENDINGS = {
    "en": ("s", "es", "ed", "d", "ing", "er", "ly", "'s"),
    "de": ("e", "en", "er", "es", "em", "n", "t", "st", "te", "ten", "s", "et"),
}
ARTICLES = {
    "en": (("a", "an", "the"),),
    "de": (
        ("der", "die", "das", "den", "dem", "des"),
        ("ein", "eine", "einen", "einem", "einer", "eines"),
        ("mein", "meine", "meinen", "meinem", "meiner"),
        ("sein", "seine", "seinen", "seinem", "seiner"),
        ("kein", "keine", "keinen", "keinem", "keiner"),
    ),
}
ORDER = ("swapped", "moved")
# Errors that leave the meaning nearly as it was; all others change or lose something.
MILD = frozenset({"case", "ending", "article", "doubled"})
WORD = re.compile(r"^(\W*)(.*?)(\W*)$", re.DOTALL)


@dataclass(frozen=True)
class Planted:
    """A text with one error of a kind."""

    text: str
    kind: str

    @property
    def mild(self) -> bool:
        return self.kind in MILD


class Planter:
    """Plants errors into sentences of one language.

    Args:
        sentences: the corpus that says which words stand where.
        language: "en" or "de".
    """

    def __init__(self, sentences: Sequence[str], language: str) -> None:
        self.endings, self.articles = ENDINGS[language], ARTICLES[language]
        self.words: list[str] = []
        between: dict[tuple[str, str], set[str]] = defaultdict(set)
        starts: dict[str, set[str]] = defaultdict(set)
        for sentence in sentences:
            cores = [core(word) for word in sentence.split()]
            self.words += cores[1:]
            for before, word, after in zip(["", *cores], cores, [*cores[1:], ""], strict=False):
                between[before.lower(), after.lower()].add(word)
                if before and len(word) > 4:  # first words are capitalised, whatever they are
                    starts[word[:4].lower()].add(word)
        self.between = {key: sorted(words) for key, words in between.items() if len(words) > 1}
        self.starts = {key: sorted(words) for key, words in starts.items() if len(words) > 1}
        self.kinds: dict[str, Callable[[list[str], int, random.Random], str | list[str] | None]] = {
            "missing": missing,
            "doubled": doubled,
            "swapped": swapped,
            "moved": moved,
            "case": case,
            "ending": self._ending,
            "article": self._article,
            "related word": lambda words, i, rng: other(words[i], self.starts.get(core(words[i])[:4].lower(), ()), rng),
            "fitting word": self._fitting,
            "random word": lambda words, i, rng: other(words[i], self.words, rng),
        }

    def plant(self, text: str, rng: random.Random, kinds: Sequence[str] | None = None) -> Planted | None:
        """Plant one error of a kind drawn from `kinds` (default: all); None if none fits."""
        words = text.split()
        kinds = list(kinds or self.kinds)
        rng.shuffle(kinds)
        for kind in kinds:
            places = list(range(len(words)))
            rng.shuffle(places)
            for i in places:
                change = self.kinds[kind](words, i, rng)
                if change is None:
                    continue
                changed = change
                if isinstance(changed, str):
                    changed = [*words[:i], recore(words[i], changed), *words[i + 1 :]]
                if i == 0 and kind != "case":
                    changed[0] = recore(changed[0], alike(core(words[0]), core(changed[0])))
                planted = " ".join(changed)
                if planted and planted != text:
                    return Planted(planted, kind)
        return None

    def _ending(self, words: list[str], i: int, rng: random.Random) -> str | None:
        word = core(words[i])
        if len(word) < 3 or not word.isalpha():
            return None
        found = [ending for ending in self.endings if word.endswith(ending) and len(word) - len(ending) > 2]
        stem = word.removesuffix(rng.choice(found)) if found else word
        return stem + rng.choice([ending for ending in (*self.endings, "") if stem + ending != word])

    def _article(self, words: list[str], i: int, rng: random.Random) -> str | None:
        word = core(words[i])
        for forms in self.articles:
            if word.lower() in forms:
                return alike(word, rng.choice([form for form in forms if form != word.lower()]))
        return None

    def _fitting(self, words: list[str], i: int, rng: random.Random) -> str | None:
        before = core(words[i - 1]).lower() if i else ""
        after = core(words[i + 1]).lower() if i + 1 < len(words) else ""
        return other(words[i], self.between.get((before, after), ()), rng)


def missing(words: list[str], i: int, rng: random.Random) -> list[str] | None:
    if len(words) < 3:
        return None
    rest = [*words[:i], *words[i + 1 :]]
    if i == len(words) - 1:
        rest[-1] = core(rest[-1]) + split(words[i])[2]
    return rest


def doubled(words: list[str], i: int, rng: random.Random) -> str | None:
    word = core(words[i])
    return f"{word} {word[:1].lower() + word[1:] if i == 0 else word}" if word else None


def swapped(words: list[str], i: int, rng: random.Random) -> list[str] | None:
    if i == 0 or i + 1 >= len(words):
        return None
    left, right = words[i : i + 2]
    return [*words[:i], recore(left, core(right)), recore(right, core(left)), *words[i + 2 :]]


def moved(words: list[str], i: int, rng: random.Random) -> list[str] | None:
    # The first word and the last one keep capital letter and full stop.
    places = [k for k in range(1, len(words) - 1) if abs(k - i) > 1]
    if not 0 < i < len(words) - 1 or not places:
        return None
    rest = [*words[:i], *words[i + 1 :]]
    place = rng.choice(places)
    return [*rest[:place], words[i], *rest[place:]]


def case(words: list[str], i: int, rng: random.Random) -> str | None:
    word = core(words[i])
    return word[:1].swapcase() + word[1:] if i and len(word) > 1 and word[0].isalpha() else None


def other(word: str, choices: Sequence[str], rng: random.Random) -> str | None:
    """Draw another word than `word` from `choices`; None if four draws find none."""
    for _ in range(4):
        drawn = rng.choice(choices) if choices and core(word) else ""
        if drawn and drawn.lower() != core(word).lower():
            return drawn
    return None


def split(word: str) -> tuple[str, str, str]:
    """Split into (punctuation before, the word itself, punctuation after)."""
    before, middle, after = WORD.match(word).groups()  # type: ignore[union-attr]  # it matches every string
    return before, middle, after


def core(word: str) -> str:
    """Return the word without the punctuation around it."""
    return split(word)[1]


def recore(word: str, other: str) -> str:
    """Put `other` into the punctuation of `word`."""
    before, _, after = split(word)
    return before + other + after


def alike(word: str, other: str) -> str:
    """Give `other` the first letter's case of `word`."""
    return other[:1].upper() + other[1:] if word[:1].isupper() else other[:1].lower() + other[1:]
