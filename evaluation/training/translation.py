"""Using a translator in bulk: search, sampling, and the likelihood of given translations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from evaluation.training.bitext import Batch, Model, Tokenizer, encode, make_batch
from evaluation.training.trainer import length_batches


def load(folder: Path) -> tuple[Model, Tokenizer]:
    """A translator from its folder, in fp32 and evaluation mode."""
    model: Model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(folder)


def token_losses(model: Model, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy (nats) of each target token after the language token, and the (B, T) mask of where they are."""
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    hidden = model.model(
        input_ids=batch.sources,
        attention_mask=batch.sources.ne(pad).long() if batch.padded_source else None,
        decoder_input_ids=F.pad(batch.targets[:, :-1], (1, 0), value=start),
        use_cache=False,
    ).last_hidden_state
    # Position 0 predicts the language token, which generation forces; padding on the right is not attended to.
    wanted = batch.targets.ne(pad)
    wanted[:, 0] = False
    logits = model.lm_head(hidden[wanted])
    return F.cross_entropy(logits, batch.targets[wanted], reduction="none"), wanted


@torch.inference_mode()
def mean_log_likelihoods(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    targets: Sequence[str],
    source_language: str,
    target_language: str,
    batch_tokens: int = 4096,
) -> np.ndarray:
    """(n,) log p(target | source) per target token."""
    left, right = encode(tokenizer, sources, source_language), encode(tokenizer, targets, target_language)
    lengths = np.array([(len(a), len(b)) for a, b in zip(left, right, strict=True)])
    result = np.empty(len(left))
    for indices in length_batches(lengths, batch_tokens, seed=0, epoch=0):
        batch = make_batch([left[i] for i in indices], [right[i] for i in indices], int(tokenizer.pad_token_id))
        losses, wanted = token_losses(model, batch)
        table = torch.zeros(wanted.shape).masked_scatter_(wanted, losses)
        result[indices] = -(table.sum(1) / wanted.sum(1)).double().numpy()
    return result


def translate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    source: str,
    target: str,
    beams: int = 1,
) -> list[str]:
    """Greedy or beam-search translations, in the order of `texts`."""
    groups = _generate(model, tokenizer, texts, source, target, {"num_beams": beams, "do_sample": False})
    return [group[0] for group in groups]


def sample_translations(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    source: str,
    target: str,
    samples: int,
    epsilon: float = 0.02,
) -> list[list[str]]:
    """ε-samples of each text; the draws come from torch's global generator."""
    options = {"do_sample": True, "epsilon_cutoff": epsilon, "top_k": 0, "num_return_sequences": samples}
    return _generate(model, tokenizer, texts, source, target, options, batch_size=max(1, 256 // samples))


def _generate(
    model: Model,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    source: str,
    target: str,
    options: Mapping[str, object],
    batch_size: int = 64,
) -> list[list[str]]:
    tokenizer.src_lang = source
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    results: list[list[str]] = [[] for _ in texts]
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        inputs = tokenizer([texts[i] for i in chosen], return_tensors="pt", padding=True)
        limit = 2 * inputs["input_ids"].shape[1] + 10
        outputs = model.generate(
            **inputs, forced_bos_token_id=tokenizer.get_lang_id(target), max_new_tokens=limit, **options
        )
        decoded = tokenizer.batch_decode(outputs, skip_special_tokens=True)
        share = len(decoded) // len(chosen)
        for k, i in enumerate(chosen):
            results[i] = decoded[k * share : (k + 1) * share]
    return results
