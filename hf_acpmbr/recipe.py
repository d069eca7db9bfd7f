"""Recipe: everything that a decoding run depends on besides its inputs, as a tree of the stages' own settings."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .budget import Budget
from .config import Configured, integer, nested, optional, setting, several, suggest
from .decoding.base import Decoder
from .files import write_atomically
from .keywords import KEYWORDS, replaced, set_completer
from .registry import COMPLETERS, DECODERS, OBSERVATIONS, SAMPLERS
from .sampling.base import Sampler
from .utilities import UtilityLike, UtilitySpec, distilled_partners

RECIPE_NAME = "mbr_recipe.json"
PAPER_SAMPLES = 1024


@dataclass(frozen=True)
class Sampling(Configured):
    """How candidates and pseudo-references come about.

    Args:
        num_candidates: how many samples to draw.
        num_references: how many separate pseudo-references to draw; None lets the candidates serve as both.
        sampler: how they are drawn; the paper's is ε-sampling with ε = 0.02 and nothing else.
        references_sampler: the same for pseudo-references drawn apart; None takes `sampler`.
    """

    num_candidates: int = setting(PAPER_SAMPLES, integer(1))
    num_references: int | None = setting(None, optional(integer(1)))
    sampler: Sampler = nested(SAMPLERS.check, lambda: SAMPLERS.build("auto"))
    references_sampler: Sampler | None = setting(None, optional(SAMPLERS.check))


@dataclass(frozen=True)
class Recipe(Configured):
    """Sampling, decoder, utilities and seed. Frozen, checked, saved as JSON.

    Args:
        decoder: with everything inside it: completer, observation, budgets (`hf_acpmbr.decoding`).
        sampling: how candidates come about.
        target: the utility that decides.
        distilled: the cheaper utilities that guide it.
        seed: same seed, same result.
    """

    decoder: Decoder = nested(DECODERS.check, lambda: DECODERS.build("acpmbr"))
    sampling: Sampling = nested(Sampling.check, Sampling)
    target: UtilitySpec | None = setting(None, optional(UtilitySpec.check))
    distilled: tuple[UtilitySpec, ...] = setting((), several(UtilitySpec.check, least=0))
    seed: int = setting(0, integer(0))

    @classmethod
    def named(
        cls,
        name: str = "auto",
        *,
        target: UtilityLike | None = None,
        distilled: UtilityLike | Sequence[UtilityLike] = (),
        seed: int = 0,
        decoder: object = None,
        completer: object = None,
        observation: object = None,
        **keywords: object,
    ) -> Recipe:
        """A recipe by name for these utilities, changed by keywords (those of `ACPMBR`).

        "fast": 1 target score per candidate and 16 of a guide of BLEURT-20-D3's cost, without a guide 2; "thorough": 32
        and 512, without a guide 64; "auto": at most what "thorough" spends, less where the choice is clear before
        (`max_regret`); "paper-low", "paper-high": the paper's two settings to the letter.
        """
        if name not in NAMED:
            raise ValueError(f"recipe {name!r} is unknown: {suggest(name, NAMED)}")
        specs = utility_specs(target, distilled)
        chosen = default_decoder(NAMED[name], *specs, decoder, completer, observation, set_completer(keywords))
        return cls(chosen, Sampling(), *specs, seed).changed(**keywords)

    def changed(self, **keywords: object) -> Recipe:
        """The same with other settings, by `ACPMBR`'s keywords; a keyword that no stage here takes is refused."""
        recipe = self
        for one, other in (("reduction", "scores_per_row"), ("distilled_reduction", "distilled_scores_per_row")):
            if one in keywords and other in keywords:
                raise ValueError(f"{one} and {other} are two ways to say one thing: give one of them")
        for keyword in sorted(keywords, key=lambda key: list(KEYWORDS).index(key) if key in KEYWORDS else -1):
            if keyword not in KEYWORDS:
                raise ValueError(f"{keyword!r} is not a setting: {suggest(keyword, KEYWORDS)}")
            recipe = replaced(recipe, KEYWORDS[keyword], keywords[keyword], keyword)
        return recipe

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError(f"a Recipe is a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write `mbr_recipe.json` into a folder (made if need be), all or nothing."""
        return write_atomically(Path(folder) / RECIPE_NAME, self.to_json())

    @classmethod
    def from_pretrained(cls, name_or_folder: str | os.PathLike[str]) -> Recipe:
        """Read `mbr_recipe.json` from a folder or from a repository on the Hub, or a recipe's own file."""
        path = Path(name_or_folder)
        if path.is_dir():
            path = path / RECIPE_NAME
            if not path.is_file():
                raise FileNotFoundError(f"{path.parent} has no {RECIPE_NAME}: save one with Recipe.save_pretrained")
        elif not path.is_file():
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(str(name_or_folder), RECIPE_NAME))
        return cls.from_json(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Named:
    """A named recipe: what each utility may spend, in scores per row with the paper's 1,024 samples.

    Args:
        target: target scores per row beside a guide; without one there is twice as much to spend.
        guide: scores per row of a guide as cheap as BLEURT-20-D3; other known guides have their own.
        agreement: γ.
        level: the paper's level, for the rates of known guides.
        paper: to the letter: its AC-ALS, reduction rates, uniform masks, no centring, its tolerance.
        max_regret: where rounds may stop before their budget is spent; see `RoundsMBR`.
    """

    target: float
    guide: float
    agreement: float
    level: str
    paper: bool = False
    max_regret: str | None = None

    def budget(self, scores: float) -> Budget:
        return Budget(reduction=PAPER_SAMPLES / scores) if self.paper else Budget(scores_per_row=scores)

    @property
    def completer(self) -> dict[str, object]:
        """What it sets in completers that have such fields."""
        paper = {"center": False, "tolerance": 1e-4, "absolute_tolerance": True} if self.paper else {}
        return {"agreement": self.agreement, **paper}


_LOW, _HIGH = (32, 512, 0.1, "low"), (1, 16, 1.0, "high")
NAMED = {
    "auto": Named(*_LOW, max_regret="auto"),
    "fast": Named(*_HIGH),
    "thorough": Named(*_LOW),
    "paper-low": Named(*_LOW, paper=True),
    "paper-high": Named(*_HIGH, paper=True),
}


def utility_specs(
    target: UtilityLike | None, distilled: UtilityLike | Sequence[UtilityLike]
) -> tuple[UtilitySpec | None, tuple[UtilitySpec, ...]]:
    """Target and guides as settings; "auto" among the guides is the target's known distilled version."""
    decides = None if target is None else UtilitySpec.of(target)
    listed = [] if distilled is None else list(distilled) if isinstance(distilled, (list, tuple)) else [distilled]
    guides = []
    for given in listed:
        guide = UtilitySpec.of(given)
        if guide.name == "auto":
            known = distilled_partners("" if decides is None else decides.name)
            if not known:
                name = None if decides is None else decides.name
                raise ValueError(f"distilled='auto' knows no distilled version of {name!r}: name one, or leave it out")
            guide = UtilitySpec(known[0].name, guide.options)
        guides.append(guide)
    return decides, tuple(guides)


def default_decoder(
    named: Named,
    target: UtilitySpec | None,
    guides: tuple[UtilitySpec, ...],
    decoder: object,
    completer: object,
    observation: object,
    completes: bool,
) -> Decoder:
    """The one place where defaults are decided, by what is known: the utilities, and what the caller has chosen.

    Without a decoder it is "rounds"; where the paper or a setting of a completer is asked for (`completes`), one that
    completes.
    """
    if decoder is None:
        completes = completes or named.paper or completer is not None or observation is not None
        decoder = "rounds" if not completes else "acpmbr" if guides else "pmbr"
    if not isinstance(decoder, str):
        return _with_stages(DECODERS.check("decoder", decoder), completer, observation)
    fields = DECODERS.field_names(decoder)
    values: dict[str, object] = {}
    if "budget" in fields:
        values["budget"] = named.budget(named.target * (1 if guides and "guide_budgets" in fields else 2))
    if "guide_budgets" in fields:
        values["guide_budgets"] = (named.budget(_guide_scores(named, target, guides)),)
    if "max_regret" in fields:
        values["max_regret"] = named.max_regret
    if "completer" in fields:
        values.update(_completing(named, bool(guides), completer, observation))
        completer = observation = None
    return _with_stages(DECODERS.build(decoder, **values), completer, observation)


def _completing(named: Named, guided: bool, completer: object, observation: object) -> dict[str, object]:
    """Completer and observation of a decoder that completes, with defaults for what is None."""
    if completer is None:
        completer = "als" if not guided else "agreement-als" if named.paper else "transfer"
    if isinstance(completer, str):
        known = COMPLETERS.field_names(completer)
        completer = COMPLETERS.build(completer, **{k: v for k, v in named.completer.items() if k in known})
    observation = ("uniform" if named.paper else "balanced") if observation is None else observation
    return {
        "completer": COMPLETERS.check("completer", completer),
        "observation": OBSERVATIONS.check("observation", observation),
    }


def _with_stages(decoder: Decoder, completer: object, observation: object) -> Decoder:
    for name, value in (("completer", completer), ("observation", observation)):
        if value is not None:
            decoder = replaced(decoder, (name,), value, name, "decoder")
    return decoder


def _guide_scores(named: Named, target: UtilitySpec | None, guides: tuple[UtilitySpec, ...]) -> float:
    """Scores per row of the guide: the paper's for a known pair of utilities, else D3's."""
    known = distilled_partners("" if target is None else target.name)
    rates = [getattr(partner, named.level) for partner in known if [partner.name] == [guide.name for guide in guides]]
    return PAPER_SAMPLES / rates[0] if rates else named.guide
