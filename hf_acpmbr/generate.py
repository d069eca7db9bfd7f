"""ACPMBR: from a source to the chosen text. The only place that wires the stages together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .candidates import Candidates
from .completion import load_completer
from .config import MBRConfig
from .decoding import Decision, Decoder, decoder_class
from .decoding.base import Texts
from .observation import Budget, load_observation
from .utilities import Utility, as_utility, distilled_partners


class ACPMBR:
    """MBR decoding with a target utility and, where given, its distilled versions.

    https://arxiv.org/abs/2512.01316

    Args:
        tokenizer: of the model to generate with; not needed for `rerank`.
        target: the utility that decides: a name, hub id or path (`load_utility`), a Utility, an `evaluate` module, or
            an object with `score(hypotheses, references, sources=None)` and `higher_is_better`.
        distilled: the cheaper utility that guides it (or a list); "auto" takes the target's known distilled version.
            Without one the decoder is PMBR.
        preset: the paper's "low" (default) or "high" setting.
        paper: exactly the paper's method, without this package's improvements (uniform masks, no centring).
        config: an MBRConfig instead of `preset` and settings.
        settings: any field of MBRConfig.
    """

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        target: Any = None,
        distilled: Any = (),
        preset: str = "low",
        paper: bool = False,
        config: MBRConfig | None = None,
        **settings: Any,
    ) -> None:
        self.tokenizer = tokenizer
        if config is not None:
            if settings or paper:
                raise ValueError(
                    "give either config or single settings, not both: use dataclasses.replace on the config"
                )
            target, distilled = target or config.target, distilled or config.distilled
        guides = _as_list(distilled)
        if "auto" in guides:
            guides = [_partner(target) if guide == "auto" else guide for guide in guides]
        if config is None:
            settings.setdefault("decoder", "acpmbr" if guides else "pmbr")
            settings.update(target=_name(target), distilled=tuple(_name(guide) or "" for guide in guides))
            config = MBRConfig.preset(
                preset, paper=paper, distilled_rate=_paper_rate(target, guides, preset), **settings
            )
        self.config = config
        self.target: Utility | None = None if target is None else as_utility(target)
        self.guides: tuple[Utility, ...] = tuple(as_utility(guide) for guide in guides)
        self.decoder = build_decoder(config, len(self.guides))

    def rerank(
        self,
        candidates: Texts,
        source: str | None = None,
        references: Texts | None = None,
        nbest: int = 1,
    ) -> Decision:
        """Choose among candidates from anywhere: another engine, an API, a file.

        Args:
            candidates: strings (duplicates count as draws), a mapping text → count, or Candidates.
            source: what was translated, for utilities that look at it.
            references: pseudo-references; default: the candidates.
            nbest: how many the Decision's `nbest` lists.
        """
        decision = self.decoder.decode(
            Candidates.of(candidates), references, self.target, self.guides, source=source, seed=self.config.seed
        )
        return dataclasses.replace(decision, nbest_size=nbest)

    def __repr__(self) -> str:
        return f"ACPMBR(decoder={self.config.decoder!r}, target={self.target!r}, distilled={list(self.guides)!r})"


def build_decoder(config: MBRConfig, guides: int) -> Decoder:
    """The decoder that a config describes, with its stages."""
    cls = decoder_class(config.decoder)
    stages: dict[str, Any] = {}
    if config.decoder in ("pmbr", "acpmbr"):
        stages["completer"] = _completer(config, guides)
        stages["observe"] = load_observation(config.observation)
        stages["budget"] = Budget(config.reduction, config.scores_per_row)
    if config.decoder == "acpmbr":
        stages["guide_budgets"] = (Budget(config.distilled_reduction, config.distilled_scores_per_row),)
    return cls(**stages, **config.decoder_options)


def _completer(config: MBRConfig, guides: int) -> Any:
    """The completer by name, with those of the config's settings that it has."""
    name = config.completer or ("als" if config.decoder == "pmbr" else "agreement-als")
    default: Any = load_completer(name)
    settings = {f.name: getattr(config, f.name) for f in dataclasses.fields(default) if hasattr(config, f.name)}
    if isinstance(config.agreement, tuple) and len(config.agreement) != guides:
        raise ValueError(
            f"agreement has {len(config.agreement)} values for {guides} distilled utilities: give one each"
        )
    return load_completer(name, **settings)


def _partner(target: Any) -> str:
    partners = distilled_partners(_name(target) or "")
    if not partners:
        raise ValueError(f"distilled='auto' knows no distilled version of {_name(target)!r}: name one, or leave it out")
    return partners[0].name


def _paper_rate(target: Any, guides: Sequence[Any], preset: str) -> float | None:
    """The paper's r′ for a known distilled version."""
    names = [_name(guide) for guide in guides]
    rates = [getattr(p, preset, None) for p in distilled_partners(_name(target) or "") if [p.name] == names]
    return rates[0] if rates else None


def _as_list(utilities: Any) -> list[Any]:
    if utilities is None:
        return []
    return list(utilities) if isinstance(utilities, (list, tuple)) else [utilities]


def _name(utility: Any) -> str | None:
    if utility is None or isinstance(utility, str):
        return utility
    return str(getattr(utility, "name", type(utility).__name__))
