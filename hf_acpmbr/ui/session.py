"""What the page offers and allows, what a visitor asks for, and the end of a job before its time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ..config import suggest
from ..recipe import NAMED, Recipe

NO_GUIDE = "none"
OF_THE_RECIPE = "the recipe's"
RECIPES = tuple(NAMED)
DRAW, PASTE = "draw", "paste"
# The page opens with it: by the embedded models beam search says that it was lent, and the methods differ.
OPENING = "Here's the money I borrowed from you."


@dataclass(frozen=True)
class Limits:
    """What one visitor may ask for, so that a page that others can reach stays usable.

    Args:
        source_characters: longest source, and longest pasted candidate.
        candidates: most samples, and most pasted candidates.
        new_tokens: longest sample.
        jobs: jobs at the same time; the others wait.
        waiting: jobs that may wait.
    """

    source_characters: int = 500
    candidates: int = 256
    new_tokens: int = 200
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
        decoders: registered names; the table of choices compares them.
        prompt: what the model reads, with {source} for the source.
        chat: whether the prompt goes into the tokenizer's chat template.
        device: of the model; None for cuda if there is one.
    """

    models: tuple[str, ...] = ("embedded",)
    targets: tuple[str, ...] = ("embedded", "chrf", "bleu", "ter")
    guides: tuple[str, ...] = ("embedded-d1", "embedded-d2", "chrf")
    decoders: tuple[str, ...] = ("rounds", "acpmbr", "pmbr", "halving")
    prompt: str = "{source}"
    chat: bool = False
    device: str | None = None


@dataclass(frozen=True)
class Form:
    """What a visitor asks for; the page has one component per field.

    Args:
        mode: DRAW samples from the model, or PASTE candidates.
        pasted: candidates, one per line; a line that repeats counts as drawn again.
        decoder: OF_THE_RECIPE, or one of the offered names.
        score_all: whether to score all pairs too, for full MBR and other budgets.
    """

    source: str
    mode: str = DRAW
    pasted: str = ""
    model: str = "embedded"
    source_language: str | None = "en"
    target_language: str | None = "de"
    target: str = "embedded"
    guide: str = "embedded-d1"
    recipe: str = "auto"
    decoder: str = OF_THE_RECIPE
    candidates: int = 48
    seed: int = 0
    score_all: bool = True

    def check(self, offer: Offer, limits: Limits) -> None:
        """Refuse what the offer and the limits do not allow, with what to change."""
        for name, names, what in (
            (self.mode, (DRAW, PASTE), "mode"),
            (self.model, offer.models, "model"),
            (self.target, offer.targets, "target utility"),
            (self.guide, (NO_GUIDE, *offer.guides), "distilled utility"),
            (self.recipe, RECIPES, "recipe"),
            (self.decoder, (OF_THE_RECIPE, *offer.decoders), "decoder"),
        ):
            if name not in names:
                raise ValueError(f"{what} {name!r} is not offered here: {suggest(name, names)}")
        draws, most, long = self.mode == DRAW, limits.candidates, limits.source_characters
        number = self.candidates if draws else len(self.lines())
        if draws and not self.source.strip():
            raise ValueError("the source is empty: type a sentence")
        if draws and self.source_language and self.source_language == self.target_language:
            raise ValueError(f"both languages are {self.source_language!r}: choose two")
        if not 2 <= number <= most:
            how = "the number of samples must be" if draws else "paste candidates, one per line,"
            raise ValueError(f"{how} from 2 to {most}, got {number}")
        longest = max(map(len, [self.source] if draws else [self.source, *self.lines()]))
        if longest > long:
            raise ValueError(f"a text has {longest:,} characters, at most {long:,} are allowed: split it")
        if self.target == self.guide:
            raise ValueError(
                f"target and distilled utility are both {self.target!r}: choose a cheaper guide, or {NO_GUIDE!r}"
            )

    def lines(self) -> list[str]:
        """The pasted candidates."""
        return [line.strip() for line in self.pasted.splitlines() if line.strip()]

    def build(self) -> Recipe:
        """Build the recipe that the form describes."""
        return Recipe.named(
            self.recipe,
            target=self.target,
            distilled=[] if self.guide == NO_GUIDE else [self.guide],
            decoder=None if self.decoder == OF_THE_RECIPE else self.decoder,
            seed=self.seed,
            num_candidates=self.candidates,
        )


class Cancelled(Exception):
    """The visitor does not want the result any more."""

    def __str__(self) -> str:
        return "cancelled"


_CANCELLED: ContextVar[Callable[[], bool]] = ContextVar("cancelled", default=lambda: False)


def _look(*_: object) -> None:
    if _CANCELLED.get()():
        raise Cancelled


@contextmanager
def interruptible(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Raise Cancelled at the next step of any network, of the model or of a utility, once `cancelled()` is true.

    torch's hook is one for the whole process; the context variable keeps it from ending the jobs of other visitors.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    token = _CANCELLED.set(cancelled)
    hook = register_module_forward_pre_hook(_look)
    try:
        _look()
        yield
    finally:
        hook.remove()
        _CANCELLED.reset(token)


class Jobs(dict[str, threading.Event]):
    """The running job of each visitor, as the event that is set when it is to end."""

    def start(self, visitor: str) -> threading.Event:
        """Register a job, which ends the one before."""
        self.cancel(visitor)
        return self.setdefault(visitor, threading.Event())

    def cancel(self, visitor: str) -> bool:
        """End the visitor's job at its next step; False if there was none."""
        event = self.pop(visitor, None)
        if event is not None:
            event.set()
        return event is not None

    def end(self, visitor: str, event: threading.Event) -> None:
        """Forget a job that is over by itself."""
        if self.get(visitor) is event:
            del self[visitor]
