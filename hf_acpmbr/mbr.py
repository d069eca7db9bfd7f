"""ACPMBR: from a source to the chosen text. The only place that wires the stages together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .candidates import Candidates
from .config import integer, optional
from .decision import Decision
from .decoding import Texts
from .decoding.draw_loss import Part
from .generation.corpus import MapFunction
from .generation.fingerprint import ModelSignature, generation_signature
from .generation.guard import Caller, CheckedSignature
from .generation.request import read_request, source_texts
from .recipe import Recipe, utility_specs
from .sampling import Request, Samples
from .sampling.base import Sampler
from .scoring import Source, UtilityLike, decide_together
from .until_sure import Asking, Drawing, decide_until_sure, stated_loss

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    from .generation.output import MBROutput
    from .types import GenerativeModel, Tokenizer

_NBEST = optional(integer(1))


class ACPMBR:
    """MBR decoding with a target utility and, where given, its distilled versions.

    https://arxiv.org/abs/2512.01316

    Args:
        tokenizer: of the model to generate with; not needed for `rerank`.
        target: the utility that decides: a name, hub id or path (`load_utility`), {"name": ..., options}, a Utility,
            an `evaluate` module, or an object with `score(hypotheses, references, sources=None)` and
            `higher_is_better`.
        distilled: the cheaper utility that guides it (or a list); "auto" takes the target's known distilled version.
            Without one the decoder is PMBR.
        recipe: "auto", "fast", "thorough", "paper-low", "paper-high", or a Recipe.
        seed: same seed, same result; default: the recipe's.
        trust_remote_code: let a utility run a program that comes from elsewhere (the script of an `evaluate` module).
            No recipe can ask for it.
        keywords: settings of the recipe's stages: num_candidates, num_references, epsilon, temperature, top_k, top_p,
            min_p, max_rows; sampler, references_sampler, decoder, completer, observation (each a name,
            {"name": ..., settings} or an object; a sampler also as a transformers GenerationConfig, with num_beams > 1
            to choose among beams); reduction or scores_per_row, distilled_reduction or distilled_scores_per_row,
            confidence, max_regret, time_limit (seconds of scoring per source), and the completer's own (rank,
            regularization, agreement, …). One that the chosen stages do not take is refused.
    """

    __signature__ = CheckedSignature()  # read by `generate`, which hands over the arguments that are named below

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        *,
        target: UtilityLike | None = None,
        distilled: UtilityLike | Sequence[UtilityLike] = (),
        recipe: str | Recipe = "auto",
        seed: int | None = None,
        trust_remote_code: bool = False,
        **keywords: object,
    ) -> None:
        self.tokenizer = tokenizer
        if isinstance(recipe, Recipe):
            decides, guides = utility_specs(recipe.target if target is None else target, distilled or recipe.distilled)
            seed = recipe.seed if seed is None else seed
            changed = dataclasses.replace(recipe, target=decides, distilled=guides, seed=seed)
            self.recipe = changed.changed(**keywords)
        elif isinstance(recipe, str):
            self.recipe = Recipe.named(recipe, target=target, distilled=distilled, seed=seed or 0, **keywords)
        else:
            raise TypeError(f"recipe must be a name or a Recipe, got {type(recipe).__name__}")
        self.decoder = self.recipe.decoder
        self.decoder.check_utilities(self.recipe.target is not None, len(self.recipe.distilled))
        spec, trust = self.recipe.target, trust_remote_code
        self.target = None if spec is None else spec.load(trust_remote_code=trust)
        self.guides = tuple(spec.load(trust_remote_code=trust) for spec in self.recipe.distilled)
        self._start = partial(self.decoder.start, target=self.target, guides=self.guides, seed=self.recipe.seed)
        used = self.guides if self.target is None else (self.target, *self.guides)
        self._joins_sources = any(utility.joins_sources for utility in used)
        self._reads_sources = any(utility.needs_source or utility.takes_source for utility in used)

    def __call__(
        self,
        model: GenerativeModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList | None,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        inputs_tensor: torch.Tensor | None = None,
        sources: Sequence[str] | None = None,
        candidates: Sequence[Texts] | None = None,
        references: Sequence[Texts] | None = None,
        stop_strings: str | list[str] | None = None,
        caller: Caller | None = None,
        **model_kwargs: object,
    ) -> torch.Tensor | MBROutput:
        """`model.generate(**inputs, custom_generate=this)`: draw, score, choose for each of S sources.

        All arguments come from `generate`; those a caller may add to its call are

        Args:
            sources: S source texts, for utilities that look at them; default: read back from the input ids.
            candidates: S lists of texts to choose from instead of drawing samples.
            references: S lists of pseudo-references; default: the candidates, or `num_references` samples drawn apart.
            stop_strings: as `generate` takes them, which would want a tokenizer for them; here ACPMBR has it.
            caller: not for callers: what the check of the call found (`CheckedSignature`).

        Returns:
            (S·k, length) token ids with k = num_return_sequences, or an MBROutput with return_dict_in_generate=True.
        """
        caller = caller or Caller()
        with caller.streaming():
            tokenizer = self.generation_tokenizer  # refused before anything is drawn
            request = read_request(
                *(model, tokenizer, input_ids, logits_processor, stopping_criteria, generation_config),
                *(inputs_tensor, stop_strings, model_kwargs),
            )
            output = self._generate(request, sources, candidates, references, caller.sequences)
            if caller.streamer is not None:
                caller.streamer.put(output["sequences"][0, request.input_ids.shape[1] :].cpu())
        if generation_config.return_dict_in_generate:
            return output
        sequences: torch.Tensor = output["sequences"]
        return sequences

    def _generate(
        self,
        request: Request,
        sources: Sequence[str] | None,
        candidates: Sequence[Texts] | None,
        references: Sequence[Texts] | None,
        k: int,
    ) -> MBROutput:
        """Draw, score, choose k texts for every source of the request."""
        from .generation.output import assemble

        texts = source_texts(self.generation_tokenizer, request, sources, self._reads_sources)
        start = time.perf_counter()
        sampling, context, rows = self.recipe.sampling, dict[str, object](), 0
        if candidates is None:
            # What the result depends on besides candidates and decoder: the model, and how it was sampled.
            context = {
                "model": ModelSignature(request.model),
                "sampling": sampling,
                "generation": generation_signature(request.generation_config, request.logits_processor),
            }
            if sampling.num_candidates == "auto" and references is None:
                return self._generate_until_sure(request, texts, context, k)
            pools, rows = self._draw(sampling.sampler, request, sampling.fixed_number, sampling.add_beam)
        else:
            pools = _given("candidates", candidates, request)
        others = None  # without pseudo-references of their own the candidates serve as both
        if references is not None:
            others = _given("references", references, request)
        elif sampling.num_references is not None or sampling.references_sampler is not None:
            apart = dataclasses.replace(request, keys=tuple(key + b"references" for key in request.keys))
            sampler = sampling.references_sampler or sampling.sampler
            others, more_rows = self._draw(sampler, apart, sampling.num_references or sampling.fixed_number)
            rows += more_rows
        seconds = time.perf_counter() - start
        decisions = self._decide_all(pools, texts, others or [None] * len(pools), context)
        return assemble(request, self.generation_tokenizer, decisions, others, k, rows, seconds)

    def _generate_until_sure(
        self, request: Request, sources: Sequence[str | None], context: Mapping[str, object], k: int
    ) -> MBROutput:
        from .generation.output import assemble

        sampling = self.recipe.sampling
        drawing = Drawing(request, sampling.sampler, self.recipe.seed, self._read, sampling.add_beam)
        decisions = self._decide_until_sure(drawing, sources, context)
        costs = drawing.rows, drawing.seconds
        return assemble(request, self.generation_tokenizer, decisions, None, k, *costs)

    @property
    def generation_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, which generation needs and `rerank` does not."""
        if self.tokenizer is None:
            raise ValueError("generation needs the model's tokenizer: ACPMBR(tokenizer, target=...)")
        return self.tokenizer

    def map_fn(self, model: GenerativeModel, **options: Any) -> MapFunction:
        """Make a function for `datasets.Dataset.map(..., batched=True)`; the options are those of `MapFunction`."""
        return MapFunction(self, model, **options)

    def rerank(
        self,
        candidates: Texts,
        source: str | None = None,
        references: Texts | None = None,
        nbest: int | None = None,
        more: Callable[[int], Texts] | None = None,
    ) -> Decision:
        """Choose among candidates from anywhere: another engine, an API, a file.

        Args:
            candidates: strings (duplicates count as draws), a mapping text → count, or Candidates.
            source: what was translated, for utilities that look at it.
            references: pseudo-references; default: the candidates.
            nbest: how many the Decision's `nbest` lists; by default 1, or as many as the decoder selects.
            more: with num_candidates="auto", what draws n more of them if the choice is not sure yet.
        """
        if more is None:
            return self.rerank_many([candidates], [source], [references], nbest)[0]
        if self.recipe.sampling.num_candidates != "auto":
            raise ValueError("more= draws until the choice is sure: give num_candidates='auto' too")
        if references is not None:
            raise ValueError("more= draws candidates that are pseudo-references as well: leave references out")
        (decision,) = self._decide_until_sure(Asking(Candidates.of(candidates), more), [source])
        return decision.changed(nbest_size=_NBEST("nbest", nbest) or decision.nbest_size or 1)

    def rerank_many(
        self,
        candidates: Sequence[Texts],
        sources: Sequence[str | None] | None = None,
        references: Sequence[Texts | None] | None = None,
        nbest: int | None = None,
    ) -> list[Decision]:
        """Choose for many sources as `rerank` does, with their scores computed together, in fuller batches."""
        for name, given in (("sources", sources), ("references", references)):
            if isinstance(given, str) or (given is not None and len(given) != len(candidates)):
                raise ValueError(f"{name} must have one entry for each of the {len(candidates)} lists of candidates")
        listed = _NBEST("nbest", nbest)
        for source in sources or ():
            if source is not None and not isinstance(source, str):
                raise TypeError(f"source is {type(source).__name__}, expected str")
        nothing = [None] * len(candidates)
        pools = [Candidates.of(texts) for texts in candidates]
        decisions = self._decide_all(pools, sources or nothing, references or nothing)
        return [decision.changed(nbest_size=listed or decision.nbest_size or 1) for decision in decisions]

    def _decide_all(
        self,
        pools: Sequence[Candidates],
        sources: Sequence[str | None],
        references: Sequence[Texts | None],
        context: Mapping[str, object] | None = None,
    ) -> list[Decision]:
        given = zip(pools, references, sources, strict=True)
        started = (self._start(pool, others, source=source, context=context) for pool, others, source in given)
        return decide_together(started, joined=self._joins_sources)

    def _decide_until_sure(
        self, pools: Asking | Drawing, sources: Sequence[str | None], context: Mapping[str, object] | None = None
    ) -> list[Decision]:
        def start(k: int, pool: Candidates, part: Part) -> Source[Decision]:
            return self._start(pool, source=sources[k], context=context, part=part)

        sampling, bound = self.recipe.sampling, stated_loss(self.decoder, self.target)
        limits = len(sources), sampling.max_candidates, sampling.sure
        return decide_until_sure(pools, start, bound, *limits, self._joins_sources)

    def _draw(
        self, sampler: Sampler, request: Request, number: int, add_beam: int = False
    ) -> tuple[list[Candidates], int]:
        """Return the candidates of every source, and the decoder rows that they cost."""
        drawn = sampler.sample(request, number, self.recipe.seed)
        if add_beam:
            from .sampling.loops import own_outputs

            drawn = [samples.plus(own) for samples, own in zip(drawn, own_outputs(request, add_beam), strict=True)]
        return [self._read(samples) for samples in drawn], sum(samples.model_rows for samples in drawn)

    def _read(self, samples: Samples) -> Candidates:
        """Make candidates of sequences: what the utilities compare is texts without special tokens and prompt."""
        return Candidates.from_texts(
            self.generation_tokenizer.batch_decode([list(ids) for ids in samples.token_ids], skip_special_tokens=True),
            counts=samples.counts,
            token_ids=samples.token_ids,
            logprobs=samples.logprobs,
            sampling_logprobs=samples.sampling_logprobs,
        )

    def __repr__(self) -> str:
        return f"ACPMBR(decoder={self.decoder.name!r}, target={self.target!r}, distilled={list(self.guides)!r})"


def _given(name: str, texts: Sequence[Texts], request: Request) -> list[Candidates]:
    if isinstance(texts, (str, dict)) or len(texts) != len(request.keys):
        raise ValueError(f"{name} must hold one list of texts for each of the {len(request.keys)} sources")
    return [Candidates.of(item) for item in texts]
