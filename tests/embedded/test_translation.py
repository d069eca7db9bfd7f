from __future__ import annotations

import numpy as np
import torch
from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

from evaluation.training.translation import encode, mean_log_likelihoods, sample_translations, translate


def test_likelihood_equals_the_one_from_the_models_own_logits(
    translator: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]
) -> None:
    sources, targets = ([pair[k] for pair in pairs[::9]] for k in (0, 1))
    found = mean_log_likelihoods(translator, tokenizer, sources, targets, "en", "de", batch_tokens=120)
    tokenizer.src_lang = "en"
    for source, target, value in zip(sources, targets, found, strict=True):
        labels = torch.tensor(encode(tokenizer, [target], "de"))
        with torch.no_grad():
            logits = translator(**tokenizer(source, return_tensors="pt"), labels=labels).logits[0]
        picked = torch.log_softmax(logits, -1)[torch.arange(labels.shape[1]), labels[0]][1:]
        np.testing.assert_allclose(value, float(picked.mean()), rtol=1e-4)


def test_translations_keep_the_order_of_the_texts(
    translator: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer, pairs: list[tuple[str, str]]
) -> None:
    texts = [pair[0] for pair in pairs[:70:3]]
    together = translate(translator, tokenizer, texts, "en", "de")
    assert len(set(together)) > 1
    assert together == translate(translator, tokenizer, texts[::-1], "en", "de")[::-1]
    assert not any("__" in text for text in together)


def test_samples_come_as_many_as_asked_for(
    translator: M2M100ForConditionalGeneration, tokenizer: M2M100Tokenizer
) -> None:
    torch.manual_seed(0)
    drawn = sample_translations(translator, tokenizer, ["I see bread.", "You like the old book."], "en", "de", 4)
    assert [len(samples) for samples in drawn] == [4, 4]
