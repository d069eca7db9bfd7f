"""The oracle: every sequence a tiny model can give, with its probability, by full forward passes without a cache."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from tests.models import EOS, PAD, tiny_model

Distribution = dict[tuple[int, ...], tuple[float, float]]


def next_distributions(
    model: PreTrainedModel, source: list[int], prefixes: list[tuple[int, ...]], epsilon: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(k, V) model and sampling probabilities of the token after each of k prefixes of equal length."""
    with torch.no_grad():
        sources = torch.tensor([source]).expand(len(prefixes), -1)
        tokens = torch.tensor(prefixes, dtype=torch.long).reshape(len(prefixes), -1)
        if model.config.is_encoder_decoder:
            start = torch.full((len(prefixes), 1), model.config.decoder_start_token_id)
            inputs = {"input_ids": sources, "decoder_input_ids": torch.cat([start, tokens], dim=1)}
        else:
            inputs = {"input_ids": torch.cat([sources, tokens], dim=1)}
        logits = model(**inputs, use_cache=False).logits[:, -1].double().numpy()
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    q = p.copy()
    q[:, PAD] = 0
    q /= q.sum(axis=1, keepdims=True)
    q = np.where((q >= epsilon) | (q == q.max(axis=1, keepdims=True)), q, 0)
    return p, q / q.sum(axis=1, keepdims=True)


@functools.cache
def enumerate_sequences(kind: str, source: tuple[int, ...], length: int, epsilon: float = 0.0) -> Distribution:
    """{sequence: (log-probability under the model, probability under the sampling distribution)}."""
    found: Distribution = {}
    live: Distribution = {(): (0.0, 1.0)}
    for _ in range(length):
        grown: Distribution = {}
        step_p, step_q = next_distributions(tiny_model(kind), list(source), list(live), epsilon)
        for (prefix, (log_p, q)), row_p, row_q in zip(live.items(), step_p, step_q, strict=True):
            for token in np.flatnonzero(row_q).tolist():
                ended = found if token == EOS else grown
                ended[(*prefix, token)] = (log_p + float(np.log(row_p[token])), q * float(row_q[token]))
        live = grown
    return {**found, **live}
