"""Texts → vectors with any transformers encoder, each unique text once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from ..candidates import IntArray
from ..scoring.batches import pad
from ..scoring.checkpoints import naming
from ..scoring.utility import Statistics
from .network import NetworkUtility

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel


_LAYER_COUNTS = ("encoder_layers", "num_encoder_layers")  # of encoder-decoders that count on both sides
_EACH_LAYER = ("attention_window", "layer_types")  # lists of settings, one for each layer


class TextVectors:
    """What a network makes of each text, computed when first needed and kept.

    Args:
        utility: the network's utility (device, batches, progress).
        rows: token ids of each text, special tokens included.
        pad_id: id that fills batches up.
        forward: (ids (B, L), mask (B, L)) → one item for each row.
        statistics: where to count.
    """

    def __init__(
        self,
        utility: NetworkUtility[torch.nn.Module],
        rows: Sequence[Sequence[int]],
        pad_id: int,
        forward: Callable[[torch.Tensor, torch.Tensor], Sequence[torch.Tensor] | torch.Tensor],
        statistics: Statistics,
    ) -> None:
        self.utility, self.rows, self.pad_id, self.forward = utility, rows, pad_id, forward
        self.statistics = statistics
        self.items: list[torch.Tensor | None] = [None] * len(rows)

    def get(self, indices: IntArray) -> list[torch.Tensor]:
        """The items of texts `indices`."""
        new = np.array([k for k in np.unique(indices).tolist() if self.items[k] is None], dtype=np.int64)
        if new.size:
            lengths = np.array([len(self.rows[k]) for k in new], dtype=np.int64)
            self.utility.encode(
                lengths, lambda b: self._run(new[b]), lambda b, out: self._keep(new[b], out), self.statistics
            )
            self.statistics.encoded += new.size
        return [item for k in indices.tolist() if (item := self.items[k]) is not None]

    def _run(self, batch: IntArray) -> Sequence[torch.Tensor] | torch.Tensor:
        rows = [self.rows[k] for k in batch]
        ids = pad(rows, self.pad_id, self.utility.device)
        mask = pad([[1] * len(row) for row in rows], 0, self.utility.device)
        return self.forward(ids, mask)

    def _keep(self, batch: IntArray, outputs: Sequence[torch.Tensor] | torch.Tensor) -> None:
        for k, item in zip(batch.tolist(), outputs, strict=True):
            self.items[k] = item


def load_encoder(folder: Path, layers: int | None = None) -> PreTrainedModel:
    """transformers' encoder of a folder; with `layers`, those above are neither loaded nor computed.

    Of an encoder-decoder (T5, BART) it is the encoder.
    """
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    with naming(folder):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if layers is not None:
        _keep_layers(config, layers, folder)
    # It would report the layers that are left out on purpose, and heads that no metric uses.
    verbosity = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        with naming(folder):
            model: PreTrainedModel = AutoModel.from_pretrained(folder, config=config, trust_remote_code=False)
    finally:
        logging.set_verbosity(verbosity)
    both_sides = hasattr(model, "encoder") and hasattr(model, "decoder")
    return cast("PreTrainedModel", model.encoder) if both_sides else model


def _keep_layers(config: PretrainedConfig, layers: int, folder: Path) -> None:
    """Make a configuration that of a network with only the first `layers` of its (encoder's) layers."""
    name = next((name for name in _LAYER_COUNTS if hasattr(config, name)), "num_hidden_layers")
    there = int(getattr(config, name))
    if layers > there:
        raise ValueError(f"layer={layers}, but {folder} has only {there}")
    for each in _EACH_LAYER:
        settings = getattr(config, each, None)
        if isinstance(settings, list) and len(settings) == there:
            setattr(config, each, settings[:layers])
    setattr(config, name, layers)
