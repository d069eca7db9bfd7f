"""One class of model through `generate` with ACPMBR, every candidate and choice computed again by other means."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import transformers as hf
from sacrebleu.metrics import CHRF
from tokenizers import Tokenizer, models, pre_tokenizers

from hf_acpmbr import ACPMBR
from hf_acpmbr.sampling import base
from hf_acpmbr.sampling.prefix_sharing import shared_prompt
from hf_acpmbr.sampling.prefix_sharing.shared_prompt import Joined, SharedPrompt
from tests.sweep.inputs import batch, first_logits, sources
from tests.sweep.tiny import BOS, EOS, LAST_WORD, PAD, UNKNOWN, VOCABULARY, tiny_model

NEW_TOKENS = 4
CANDIDATES = 6
EPSILON = 0.02  # of the default recipe
# Two ways to reach the same logits differ by this in float32.
TOLERANCE = 2e-4
_NEAR = 1e-5  # of ε
_SPREAD = 2.5  # standard deviation of the logits

# Sampler's settings, and what the call of generate adds.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "constrained": ({"epsilon": 0.0}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}),
}
# Reserved ids (images, sounds, padding) are no words: a random model would draw them.
SUPPRESSED = [PAD, BOS, UNKNOWN, *range(LAST_WORD + 1, VOCABULARY)]


@functools.cache
def tokenizer() -> hf.PreTrainedTokenizerFast:
    """A word per id, as many as the largest vocabulary needs."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    names = [*special, *(f"w{k}" for k in range(len(special), VOCABULARY))]
    core = Tokenizer(models.WordLevel({name: k for k, name in enumerate(names)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


class Follow(hf.LogitsProcessor):
    """Notes the scores of each step, and allows nothing but the next token of a sequence."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens, self.scores = tokens, []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        token = self.tokens[len(self.scores)] if len(self.scores) < len(self.tokens) else EOS
        self.scores.append(scores[0].double())
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0.0
        return forced


def forced_logprobs(
    model: Any, inputs: Mapping[str, Any], tokens: tuple[int, ...], epsilon: float, settings: Mapping[str, Any]
) -> tuple[float, float | None]:
    """Return (model's, sampling) log-probability of a sequence by a plain `generate` that is made to follow it.

    The second is None if a token is so near ε that rounding decides whether it is cut.
    """
    for generate in (model.generate, functools.partial(hf.GenerationMixin.generate, model)):
        follow = Follow(tokens)
        output = generate(
            **inputs,
            **settings,
            logits_processor=hf.LogitsProcessorList([follow]),
            max_new_tokens=NEW_TOKENS,
            num_beams=1,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        if follow.scores:  # else a model's own `generate` left the processor out
            break
    own, sampling, near = 0.0, 0.0, False
    for logits, scores, token in zip(output.logits, follow.scores, tokens, strict=False):
        own += float(logits[0].double().log_softmax(-1)[token])
        shares = scores.softmax(-1)
        near |= epsilon > 0 and bool(((shares - epsilon).abs() < _NEAR).any())
        keep = shares >= epsilon if bool((shares >= epsilon).any()) else shares == shares.max()
        sampling += math.log(float(shares[token]) / float(shares[keep].sum())) if bool(keep[token]) else -math.inf
    return own, None if near else sampling


@dataclass
class Findings:
    """What one run of `generate` with ACPMBR showed.

    Args:
        sampler: the one that drew.
        prompt: how prefixes saw the prompt, see `Row`.
        error: why it did not run, or what was wrong with it; None if all is right.
        wrong: whether it ran and gave something wrong.
        difference: largest difference of a log-probability.
        candidates: how many were compared.
    """

    sampler: str = "prefix-sharing"
    prompt: str = "–"
    error: str | None = None
    wrong: bool = False
    difference: float = 0.0
    candidates: int = 0


@contextmanager
def _watching_prompts(found: Findings) -> Iterator[None]:
    """Hold prompts once however short they are, and note in `found` how prefixes saw them."""
    seen = {"copied"} if found.prompt == "copied" else set()
    whole, built = SharedPrompt._whole, Joined.built

    def noted_whole(self: Any, prompt: torch.Tensor, suffix: torch.Tensor, shown: int) -> torch.Tensor:
        keys = whole(self, prompt, suffix, shown)
        seen.add("joined" if isinstance(keys, Joined) else "copied")
        return keys

    def noted_built(self: Any) -> torch.Tensor:
        seen.add("built")
        return built(self)

    with (
        patch.object(shared_prompt, "_JOINED_FROM", 1),
        patch.object(SharedPrompt, "_whole", noted_whole),
        patch.object(Joined, "built", noted_built),
    ):
        yield
    found.prompt = next((kind for kind in ("built", "joined", "copied") if kind in seen), "–")


class _Keeping(ACPMBR):
    """Keeps all of its output, whatever a model's own `generate` makes of it."""

    output: Any = None

    def _generate(self, *args: Any) -> Any:
        self.output = super()._generate(*args)
        return self.output


class _Noted(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(
    model: Any, given: Mapping[str, Any], sources: list[dict[str, Any]], mode: str, sampler: str = "auto"
) -> Findings:
    """Decide for a batch, and compare with each source by itself."""
    settings, added = MODES[mode]
    found, noted = Findings("chunked" if sampler == "chunked" else "prefix-sharing"), _Noted()
    if not model.config.is_encoder_decoder:
        found.prompt = "copied"
    base._announce.cache_clear()
    log = logging.getLogger("hf_acpmbr")
    log.addHandler(noted)
    try:
        mbr = _Keeping(
            tokenizer(), target="chrf", decoder="mbr", num_candidates=CANDIDATES, sampler=sampler, **settings
        )
        if model.config.model_type != "whisper":  # whose own `generate` takes the output apart
            added = {**added, "return_dict_in_generate": True}
        with _watching_prompts(found):
            model.generate(**given, **added, custom_generate=mbr, max_new_tokens=NEW_TOKENS)
    except Exception as error:
        found.error = said(error)
        return found
    finally:
        log.removeHandler(noted)
    if any("plain decoding" in line for line in noted.lines):
        found.sampler = "chunked"
    if found.sampler == "chunked":
        found.prompt = "–"
    if (out := mbr.output) is None:
        found.error = "its own generate does not hand custom_generate on"
        return found
    epsilon = settings.get("epsilon", EPSILON)
    for one, decision, texts in zip(sources, out.decisions, out.texts, strict=True):
        pool = decision.candidates
        if pool.total != CANDIDATES:
            found.error, found.wrong = f"{pool.total} candidates instead of {CANDIDATES}", True
        for ids, own, drawn in zip(pool.token_ids, pool.logprobs, pool.sampling_logprobs, strict=True):
            expected = forced_logprobs(model, one, ids, epsilon, MODES[mode][1])
            gaps = [abs(own - expected[0])] + ([abs(drawn - expected[1])] if expected[1] is not None else [])
            found.difference = max(found.difference, *(gap if math.isfinite(gap) else math.inf for gap in gaps))
            found.candidates += 1
        best = chosen(pool.expanded())
        if texts[0] not in best:
            found.error, found.wrong = f"chose {texts[0]!r} instead of {best[0]!r}", True
    if found.difference > TOLERANCE:
        found.error, found.wrong = f"log-probabilities differ by {found.difference:.2g}", True
    return found


def said(error: Exception) -> str:
    """Write an error in one short line."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".replace("|", "/")
    return text if len(text) <= 120 else f"{text[:117]}..."


class Row(NamedTuple):
    """What is known of a class: a line of the table in docs/published_models.md.

    Args:
        reads: "text", "image" or "sound".
        default, chunked, batch: the sampler that was right in all modes, "wrong", or "–".
        prompt: of a decoder-only model: "joined", held once and never copied; "built", held once and copied for each
            forward pass; "copied", held by every prefix; "–" where chunks are drawn or there is an encoder.
        why: what stands in the way, if anything.
    """

    name: str
    reads: str
    default: str = "–"
    chunked: str = "–"
    batch: str = "–"
    prompt: str = "–"
    why: str = ""


def check(name: str) -> Row:
    """Take a class through the modes with one source and with two."""
    kind = getattr(hf, name)
    try:
        model = tiny_model(kind)
        _prepare(model)
        both = sources(model, 2)
    except Exception as error:
        return Row(name, _reads(kind, {}), why=f"not built: {said(error)}")
    reads = _reads(kind, both[0])
    try:
        _sharpen(model, both[0])
        model.generate(**both[0], do_sample=True, max_new_tokens=NEW_TOKENS)
    except Exception as error:
        return Row(name, reads, why=f"plain generate: {said(error)}")
    together_given = batch(both)
    alone = [run(model, both[0], both[:1], mode) for mode in MODES]
    chunked = run(model, both[0], both[:1], "default", "chunked")
    prompt = "–" if alone[0].error else alone[0].prompt
    together: list[Findings] = []
    reasons = [found.error for found in (*alone, chunked) if found.error]
    try:
        apart = torch.cat([first_logits(model, one) for one in both])
        differs = float((first_logits(model, together_given) - apart).abs().max())
        model.generate(**together_given, do_sample=True, max_new_tokens=NEW_TOKENS)
    except Exception as error:
        reasons.append(f"plain generate takes one source: {said(error)}")
    else:
        if differs > TOLERANCE:
            reasons.append(f"plain generate gives sources of a batch other logits, by {differs:.2g}")
        else:
            together = [run(model, together_given, both, mode) for mode in MODES]
            reasons += [found.error for found in together if found.error]
    cells = _cell(alone), _cell([chunked]), _cell(together)
    return Row(name, reads, *cells, prompt, "; ".join(dict.fromkeys(reasons)))


def _prepare(model: Any) -> None:
    """Make a model end and begin as the tokenizer does, and draw nothing but words."""
    config = model.generation_config
    config.suppress_tokens, config.forced_eos_token_id = SUPPRESSED, None
    config.pad_token_id, config.eos_token_id = PAD, EOS
    if model.config.is_encoder_decoder:
        config.decoder_start_token_id = BOS


def _cell(findings: list[Findings]) -> str:
    if any(found.wrong for found in findings):
        return "wrong"
    return "–" if not findings or any(found.error for found in findings) else findings[0].sampler


def _reads(kind: Any, inputs: Mapping[str, Any]) -> str:
    if any(name.startswith(("pixel", "flattened")) for name in inputs):
        return "image"
    if any(name.startswith(("input_features", "input_values")) for name in inputs):
        return "sound"
    modalities = str(getattr(kind, "input_modalities", "text")) if not inputs else "text"
    return "image" if "image" in modalities else "sound" if "audio" in modalities else "text"


def _sharpen(model: Any, inputs: Mapping[str, Any]) -> None:
    """Scale the output so that some tokens are likely and many are below ε."""
    greedy = model.generate(
        **inputs, max_new_tokens=2, do_sample=False, output_logits=True, return_dict_in_generate=True
    )
    if not isinstance(getattr(greedy, "logits", None), tuple):  # a loop of its own
        return
    spread = float(torch.stack(greedy.logits)[..., :LAST_WORD].float().std())
    output = model.get_output_embeddings()
    if isinstance(getattr(output, "weight", None), torch.nn.Parameter) and 0 < spread < math.inf:
        output.weight.data.mul_(_SPREAD / spread)


def chosen(texts: list[str]) -> list[str]:
    """Choose by a plain loop over all pairs: the best, with those that differ by rounding alone."""
    metric = CHRF()
    unique = list(dict.fromkeys(texts))
    expected = [sum(metric.sentence_score(text, [other]).score for other in texts) / len(texts) for text in unique]
    return [text for text, value in zip(unique, expected, strict=True) if value > max(expected) - 1e-6]
