"""Recipe: everything that a decoding run depends on besides its inputs, as a tree of the stages' own settings."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .budget import PAPER_SAMPLES, Level
from .config import Configured, integer, nested, optional, setting, several, suggest
from .decoding.base import Decoder
from .files import write_atomically
from .keywords import KEYWORDS, RENAMED, replaced, set_completer
from .registry import DECODERS, SAMPLERS
from .sampling.base import Sampler
from .scoring import UtilityLike, UtilitySpec, distilled_partners

RECIPE_NAME = "mbr_recipe.json"


@dataclass(frozen=True)
class Sampling(Configured):
    """How candidates and pseudo-references come about."""

    num_candidates: int = setting(PAPER_SAMPLES, integer(1), help="how many samples to draw.")
    num_references: int | None = setting(
        None,
        optional(integer(1)),
        help="how many separate pseudo-references to draw; None lets the candidates serve as both.",
    )
    sampler: Sampler = nested(
        SAMPLERS.check,
        lambda: SAMPLERS.build("auto"),
        help="how they are drawn; the paper's is ε-sampling with ε = 0.02 and nothing else.",
    )
    references_sampler: Sampler | None = setting(
        None, optional(SAMPLERS.check), help="the same for pseudo-references drawn apart; None takes `sampler`."
    )


@dataclass(frozen=True)
class Recipe(Configured):
    """Sampling, decoder, utilities and seed. Frozen, checked, saved as JSON."""

    decoder: Decoder = nested(
        DECODERS.check,
        lambda: DECODERS.build("acpmbr"),
        help="with everything inside it: completer, observation, budgets (`hf_acpmbr.decoding`).",
    )
    sampling: Sampling = nested(Sampling.check, Sampling, help="how candidates come about.")
    target: UtilitySpec | None = setting(None, optional(UtilitySpec.check), help="the utility that decides.")
    distilled: tuple[UtilitySpec, ...] = setting(
        (), several(UtilitySpec.check, least=0), help="the cheaper utilities that guide it."
    )
    seed: int = setting(0, integer(0), help="same seed, same result.")

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
            if keyword in RENAMED:
                raise ValueError(f"{keyword}= is now {RENAMED[keyword]}=, which takes a GenerationConfig too")
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


_LOW, _HIGH = (32, 512, 0.1, "low"), (1, 16, 1.0, "high")
NAMED = {
    "auto": Level(*_LOW, max_regret="auto"),
    "fast": Level(*_HIGH),
    "thorough": Level(*_LOW),
    "paper-low": Level(*_LOW, paper=True),
    "paper-high": Level(*_HIGH, paper=True),
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
    level: Level,
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
        completes = completes or level.paper or completer is not None or observation is not None
        decoder = "rounds" if not completes else "acpmbr" if guides else "pmbr"
    stages = {"completer": completer, "observation": observation}
    if not isinstance(decoder, str):
        return _with_stages(DECODERS.check("decoder", decoder), stages)
    level = dataclasses.replace(level, guide=_guide_scores(level, target, guides))
    kind = DECODERS.get(decoder)
    taken = {name: stages.pop(name) for name in list(stages) if name in kind.field_names()}
    made = kind.at(level, len(guides), {name: value for name, value in taken.items() if value is not None})
    return _with_stages(made, stages)


def _with_stages(decoder: Decoder, stages: Mapping[str, object]) -> Decoder:
    for name, value in stages.items():
        if value is not None:
            decoder = replaced(decoder, (name,), value, name, "decoder")
    return decoder


def _guide_scores(level: Level, target: UtilitySpec | None, guides: tuple[UtilitySpec, ...]) -> float:
    """Scores per row of the guide: the paper's for a known pair of utilities, else D3's."""
    known = distilled_partners("" if target is None else target.name)
    rates = [getattr(partner, level.name) for partner in known if [partner.name] == [guide.name for guide in guides]]
    return PAPER_SAMPLES / rates[0] if rates else level.guide
