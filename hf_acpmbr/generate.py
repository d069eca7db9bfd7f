"""ACPMBR: from a source to the chosen text. The only place that wires the stages together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .candidates import Candidates
from .completion import load_completer
from .config import MBRConfig
from .decoding import Decision, Decoder, decoder_class
from .decoding.base import Texts
from .decoding.stages import LearningCompleter
from .inputs import read_request, source_texts
from .mapping import MapFunction
from .observation import Budget, load_observation
from .sampling import Request, Sampler, Samples, Truncation, load_sampler
from .utilities import Utility, as_utility, distilled_partners

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig

    from .output import MBROutput


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
        paper: exactly the paper's method, without this package's improvements: uniform masks, its AC-ALS, no centring.
        config: an MBRConfig instead of `preset` and settings.
        generation_config: sampling settings beyond those of MBRConfig (min_p, typical_p, …), or num_beams > 1 to choose
            among the beams of a beam search; replaces epsilon, temperature, top_k and top_p.
        references_config: the same for pseudo-references that are drawn apart from the candidates (`num_references`).
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
        generation_config: GenerationConfig | None = None,
        references_config: GenerationConfig | None = None,
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
        self.generation_config, self.references_config = generation_config, references_config

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        inputs_tensor: torch.Tensor | None = None,
        sources: Sequence[str] | None = None,
        candidates: Sequence[Texts] | None = None,
        references: Sequence[Texts] | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor | MBROutput:
        """`model.generate(**inputs, custom_generate=this)`: draw, score, choose for each of S sources.

        All arguments come from `generate`; those a caller may add to its call are

        Args:
            sources: S source texts, for utilities that look at them; default: read back from the input ids.
            candidates: S lists of texts to choose from instead of drawing samples.
            references: S lists of pseudo-references; default: the candidates, or `num_references` samples drawn apart.

        Returns:
            (S·k, length) token ids with k = num_return_sequences (which `generate` takes with do_sample=True only), or
            an MBROutput with return_dict_in_generate=True.
        """
        from .output import assemble

        if self.tokenizer is None:
            raise ValueError("generation needs the model's tokenizer: ACPMBR(tokenizer, target=...)")
        request = read_request(
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            inputs_tensor,
            model_kwargs,
            self._truncation(self.generation_config),
        )
        used = [utility for utility in (self.target, *self.guides) if utility is not None]
        texts = source_texts(self.tokenizer, request, sources, any(u.needs_source or u.takes_source for u in used))
        start = time.perf_counter()
        pools, rows = self._candidates(request, candidates)
        others, more_rows = self._references(request, references)
        seconds = time.perf_counter() - start
        decisions = [
            self.rerank(pool, source, None if others is None else others[row], nbest=len(pool))
            for row, (pool, source) in enumerate(zip(pools, texts, strict=True))
        ]
        output = assemble(request, self.tokenizer, decisions, others, rows + more_rows, seconds)
        if generation_config.return_dict_in_generate:
            return output
        sequences: torch.Tensor = output["sequences"]
        return sequences

    def map_fn(self, model: Any, **options: Any) -> Callable[[dict[str, list[Any]]], dict[str, list[Any]]]:
        """A function for `datasets.Dataset.map(..., batched=True)`; the options are those of `MapFunction`."""
        return MapFunction(self, model, **options)

    def rerank(
        self,
        candidates: Texts,
        source: str | None = None,
        references: Texts | None = None,
        nbest: int | None = None,
    ) -> Decision:
        """Choose among candidates from anywhere: another engine, an API, a file.

        Args:
            candidates: strings (duplicates count as draws), a mapping text → count, or Candidates.
            source: what was translated, for utilities that look at it.
            references: pseudo-references; default: the candidates.
            nbest: how many the Decision's `nbest` lists; by default 1, or as many as the decoder selects.
        """
        decision = self.decoder.decode(
            Candidates.of(candidates), references, self.target, self.guides, source=source, seed=self.config.seed
        )
        return dataclasses.replace(decision, nbest_size=nbest or decision.nbest_size or 1)

    def _candidates(self, request: Request, given: Sequence[Texts] | None) -> tuple[list[Candidates], int]:
        if given is not None:
            return _given("candidates", given, request), 0
        drawn = self._sampler(self.generation_config).sample(request, self.config.num_candidates)
        return [self._read(samples) for samples in drawn], sum(samples.model_rows for samples in drawn)

    def _references(self, request: Request, given: Sequence[Texts] | None) -> tuple[list[Candidates] | None, int]:
        """Pseudo-references of their own; None where the candidates serve as both."""
        if given is not None:
            return _given("references", given, request), 0
        if self.config.num_references is None and self.references_config is None:
            return None, 0
        apart = dataclasses.replace(request, keys=tuple(key + b"references" for key in request.keys))
        config = self.references_config or self.generation_config
        drawn = self._sampler(config).sample(apart, self.config.num_references or self.config.num_candidates)
        return [self._read(samples) for samples in drawn], sum(samples.model_rows for samples in drawn)

    def _truncation(self, generation_config: GenerationConfig | None) -> Truncation:
        if generation_config is not None:
            return Truncation.from_generation_config(generation_config)
        config = self.config
        return Truncation(config.epsilon, config.temperature, config.top_k, config.top_p)

    def _sampler(self, generation_config: GenerationConfig | None) -> Sampler:
        settings: dict[str, Any] = {"max_rows": self.config.max_rows, "seed": self.config.seed}
        if generation_config is not None and (generation_config.num_beams or 1) > 1:
            settings["search"] = generation_config
        return load_sampler(self.config.sampler, truncation=self._truncation(generation_config), **settings)

    def _read(self, samples: Samples) -> Candidates:
        """Texts of the sampled sequences: what the utilities compare, without special tokens and prompt."""
        return Candidates.from_texts(
            self.tokenizer.batch_decode([list(ids) for ids in samples.token_ids], skip_special_tokens=True),
            counts=samples.counts,
            token_ids=samples.token_ids,
            logprobs=samples.logprobs,
            sampling_logprobs=samples.sampling_logprobs,
        )

    def __repr__(self) -> str:
        return f"ACPMBR(decoder={self.config.decoder!r}, target={self.target!r}, distilled={list(self.guides)!r})"


def _given(name: str, texts: Sequence[Texts], request: Request) -> list[Candidates]:
    if isinstance(texts, (str, dict)) or len(texts) != len(request.keys):
        raise ValueError(f"{name} must hold one list of texts for each of the {len(request.keys)} sources")
    return [Candidates.of(item) for item in texts]


def build_decoder(config: MBRConfig, guides: int) -> Decoder:
    """The decoder that a config describes, with its stages."""
    cls = decoder_class(config.decoder)
    stages: dict[str, Any] = {}
    if config.decoder in ("pmbr", "acpmbr"):
        stages["completer"] = _completer(config, guides)
        stages["observe"] = _observation(config, stages["completer"])
        stages["budget"] = Budget(config.reduction, config.scores_per_row)
    if config.decoder == "acpmbr":
        stages["guide_budgets"] = (Budget(config.distilled_reduction, config.distilled_scores_per_row),)
    known = {f.name for f in dataclasses.fields(cast(Any, cls))} - stages.keys()
    for name in config.decoder_options:
        if name not in known:
            raise ValueError(
                f"decoder_options has {name!r}, which {config.decoder} does not know: "
                f"its options are {', '.join(sorted(known)) or 'none'}"
            )
    return cls(**stages, **config.decoder_options)


def _observation(config: MBRConfig, completer: Any) -> Any:
    """The plan by name; one that can stop early does so at the config's confidence."""
    rounds = config.decoder == "acpmbr" and isinstance(completer, LearningCompleter)
    name = ("adaptive" if rounds else "balanced") if config.observation == "auto" else config.observation
    observe: Any = load_observation(name)
    return dataclasses.replace(observe, confidence=config.confidence) if hasattr(observe, "confidence") else observe


def _completer(config: MBRConfig, guides: int) -> Any:
    """The completer by name, with those of the config's settings that it has."""
    name = config.completer or ("als" if config.decoder == "pmbr" else "auto")
    default: Any = load_completer(name)
    given = {f.name: getattr(config, f.name, None) for f in dataclasses.fields(default)}
    settings = {name: value for name, value in given.items() if value is not None}
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
