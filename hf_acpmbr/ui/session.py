"""What the page offers and allows, what a visitor asks for, and how a job is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..config import suggest
from ..recipe import NAMED, Recipe

NO_GUIDE = "none"
OF_THE_RECIPE = "the recipe's"
RECIPES = tuple(NAMED)
DRAW, PASTE = "draw", "paste"
# The page opens with it: beam search of the embedded translator says that the money was lent.
OPENING = "Here's the money I borrowed from you."


@dataclass(frozen=True)
class Limits:
    """What one visitor may ask for, so that a page that others can reach stays usable."""

    source_characters: int = 500  # longest source, and longest pasted candidate
    candidates: int = 256  # most samples, and most pasted candidates
    new_tokens: int = 200  # longest sample
    jobs: int = 1  # jobs at the same time; the others wait
    waiting: int = 8  # jobs that may wait

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True)
class Offer:
    """What can be chosen on the page. Visitors cannot name anything else, so nothing else is loaded."""

    models: tuple[str, ...] = ("embedded",)  # names for `load_model`
    targets: tuple[str, ...] = ("embedded", "chrf", "bleu", "ter")  # utilities that decide
    guides: tuple[str, ...] = ("embedded-d1", "embedded-d2", "chrf")  # cheaper ones
    decoders: tuple[str, ...] = ("rounds", "acpmbr", "pmbr", "halving")  # compared in the table of choices
    prompt: str = "{source}"  # what the model reads, with {source} for the source
    chat: bool = False  # whether the prompt goes into the tokenizer's chat template
    device: str | None = None  # of the model; None for an accelerator if there is one


@dataclass(frozen=True)
class Form:
    """What a visitor asks for; the page has one component per field."""

    source: str
    mode: str = DRAW  # DRAW samples from the model, or PASTE candidates
    pasted: str = ""  # candidates, one per line; a line that repeats counts as drawn again
    model: str = "embedded"
    source_language: str | None = "en"
    target_language: str | None = "de"
    target: str = "embedded"
    guide: str = "embedded-d1"
    recipe: str = "auto"
    decoder: str = OF_THE_RECIPE
    candidates: int = 48
    scores: float = 0  # the budget: target scores per candidate; 0 is the recipe's own
    seed: int = 0
    score_all: bool = True  # also score all pairs, for full MBR and the true quality
    logprob_weight: float = 0  # of the log-probability in the choice, in the target's units
    add_beam: bool = False  # the model's own output joins the candidates
    until_sure: bool = False  # `candidates` is how many samples at most

    def check(self, offer: Offer, limits: Limits) -> None:
        """Refuse what the offer and the limits do not allow, and say what to change."""
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
        draws, long = self.mode == DRAW, limits.source_characters
        if draws and not self.source.strip():
            raise ValueError("the source is empty: type a sentence")
        if draws and self.source_language and self.source_language == self.target_language:
            raise ValueError(f"both languages are {self.source_language!r}: choose two")
        count = self.candidates if draws else len(self.lines())
        if not 2 <= count <= limits.candidates:
            how = "the number of samples must be" if draws else "paste candidates, one per line,"
            raise ValueError(f"{how} from 2 to {limits.candidates}, got {count}")
        longest = max(map(len, [self.source, *([] if draws else self.lines())]))
        if longest > long:
            raise ValueError(f"a text has {longest:,} characters, at most {long:,} are allowed: split it")
        if not draws and (self.logprob_weight or self.add_beam):
            raise ValueError(
                "pasted candidates have no log-probabilities and no model: set the weight of the log-probability to 0 "
                "and leave the model's own output out, or translate with a model"
            )
        if self.target == self.guide:
            raise ValueError(
                f"target and distilled utility are both {self.target!r}: choose a cheaper guide, or {NO_GUIDE!r}"
            )

    def lines(self) -> list[str]:
        """Return the pasted candidates."""
        return [line.strip() for line in self.pasted.splitlines() if line.strip()]

    def build(self) -> Recipe:
        """Build the recipe that the form describes."""
        return Recipe.named(
            self.recipe,
            target=self.target,
            distilled=[] if self.guide == NO_GUIDE else [self.guide],
            decoder=None if self.decoder == OF_THE_RECIPE else self.decoder,
            seed=self.seed,
            **(
                {"num_candidates": "auto", "max_candidates": self.candidates}
                if self.until_sure and self.mode == DRAW
                else {"num_candidates": self.candidates}
            ),
            **({"scores_per_row": self.scores} if self.scores else {}),
            **({"logprob_weight": self.logprob_weight} if self.logprob_weight else {}),
            **({"add_beam": True} if self.add_beam else {}),
        )


class Cancelled(Exception):
    """The visitor no longer wants the result."""


@contextmanager
def interruptible(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Raise Cancelled at the next step of any network, of the model or of a utility, once `cancelled()` is true.

    torch's hook serves the whole process, so it looks at the thread: other visitors' jobs go on.
    """
    from torch.nn.modules.module import register_module_forward_pre_hook

    thread = threading.get_ident()

    def look(*_: object) -> None:
        if threading.get_ident() == thread and cancelled():
            raise Cancelled("cancelled")

    hook = register_module_forward_pre_hook(look)
    try:
        look()
        yield
    finally:
        hook.remove()


class Jobs(dict[str, threading.Event]):
    """The running job of each visitor, as the event that cancels it."""

    def start(self, visitor: str) -> threading.Event:
        """Register a job and cancel the visitor's previous one."""
        self.cancel(visitor)
        return self.setdefault(visitor, threading.Event())

    def cancel(self, visitor: str) -> bool:
        """Cancel the visitor's job at its next step; False if there was none."""
        event = self.pop(visitor, None)
        if event is not None:
            event.set()
        return event is not None

    def end(self, visitor: str, event: threading.Event) -> None:
        """Forget a job that has ended by itself."""
        if self.get(visitor) is event:
            del self[visitor]
