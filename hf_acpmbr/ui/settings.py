"""What the page offers, what it allows, and what its form may hold."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import suggest
from ..recipe import NAMED, Recipe

NO_GUIDE = "none"
RECIPES = tuple(NAMED)


@dataclass(frozen=True)
class Limits:
    """What one visitor may ask for, so that a page that others can reach stays usable.

    Args:
        source_characters: longest source text.
        candidates: most samples per source, and most candidates per line of an uploaded file.
        new_tokens: longest candidate.
        file_lines: most lines of an uploaded file.
        file_megabytes: its largest size.
        jobs: jobs at the same time; the others wait.
        waiting: jobs that may wait.
    """

    source_characters: int = 500
    candidates: int = 256
    new_tokens: int = 200
    file_lines: int = 200
    file_megabytes: int = 4
    jobs: int = 1
    waiting: int = 8

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True)
class Offer:
    """What can be chosen on the page. Visitors cannot name anything else, so only these are ever loaded.

    Args:
        models: names for `load_model`.
        targets: utilities that decide, names for `load_utility`.
        guides: cheaper utilities.
        prompt: what the model reads, with {source} for the source.
        chat: whether the prompt goes into the tokenizer's chat template.
        device: of the model; None for cuda where there is one.
    """

    models: tuple[str, ...] = ("embedded",)
    targets: tuple[str, ...] = ("embedded", "chrf", "bleu", "ter")
    guides: tuple[str, ...] = ("embedded-d1", "embedded-d2", "chrf")
    prompt: str = "{source}"
    chat: bool = False
    device: str | None = None


@dataclass(frozen=True)
class Form:
    """What a visitor asks for; `check` refuses what the offer and the limits do not allow."""

    source: str
    model: str = "embedded"
    source_language: str = "en"
    target_language: str = "de"
    target: str = "embedded"
    guide: str = "embedded-d1"
    recipe: str = "auto"
    candidates: int = 48
    seed: int = 0
    score_all: bool = True

    def check(self, offer: Offer, limits: Limits) -> None:
        """Raise ValueError with what to change."""
        if not self.source.strip():
            raise ValueError("the source is empty: type a sentence")
        if len(self.source) > limits.source_characters:
            raise ValueError(
                f"the source has {len(self.source):,} characters, at most {limits.source_characters:,} are allowed: "
                "translate it sentence by sentence"
            )
        if not 2 <= self.candidates <= limits.candidates:
            raise ValueError(f"the number of samples must be from 2 to {limits.candidates}, got {self.candidates}")
        offered(self.model, offer.models, "model")
        check_method(self.target, self.guide, self.recipe, offer)

    def build(self) -> Recipe:
        """The recipe that the form describes."""
        guides = [] if self.guide == NO_GUIDE else [self.guide]
        return Recipe.named(
            self.recipe,
            target=self.target,
            distilled=guides,
            seed=self.seed,
            num_candidates=self.candidates,
        )


def offered(name: str, names: tuple[str, ...], what: str) -> None:
    """Refuse a name that is not offered."""
    if name not in names:
        raise ValueError(f"{what} {name!r} is not offered here: {suggest(name, names)}")


def check_method(target: str, guide: str, recipe: str, offer: Offer) -> None:
    """Refuse utilities and recipes that are not offered or do not fit together."""
    offered(target, offer.targets, "target utility")
    offered(guide, (NO_GUIDE, *offer.guides), "distilled utility")
    offered(recipe, RECIPES, "recipe")
    if target == guide:
        raise ValueError(f"target and distilled utility are both {target!r}: choose a cheaper guide, or {NO_GUIDE!r}")
