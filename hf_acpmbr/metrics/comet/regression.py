"""COMET (Rei et al. 2020, 2022; https://aclanthology.org/2022.wmt-1.52): regression on cached sentence vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from ...candidates import FloatArray, IntArray
from ...scoring.checkpoints import checkpoint_folder, naming, revision_of
from ...scoring.utility import SENTENCE_TOKENS, Kernel, Statistics, TextTable
from ..network import NetworkUtility, Once, padded
from .hparams import CometHparams

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from .network import CometNetwork

_ENCODER_FILES = ("config.json", "tokenizer*", "sentencepiece*", "spm.model", "vocab*", "special_tokens_map.json")
_PAIRS_AT_ONCE = 8192  # whose features are held at a time


class CometCheckpoint(NetworkUtility["CometNetwork"]):
    """What all utilities from COMET checkpoints share.

    Args:
        checkpoint: hub id or folder with hparams.yaml and checkpoints/model.ckpt.
        encoder: folder or hub id of the encoder's config.json and tokenizer; default: what the checkpoint names.
        options: see `NetworkUtility`.
    """

    files = ("hparams.yaml", "checkpoints/*.ckpt", "config.json", "*.safetensors", "pytorch_model.bin")
    needs_source = True
    classes: tuple[str, ...]  # COMET's names for them
    blocks: int  # vectors that the estimator sees

    def __init__(self, checkpoint: str, *, encoder: str | None = None, **options: Any) -> None:
        super().__init__(checkpoint, **options)
        self.encoder = encoder

    @cached_property
    def hparams(self) -> CometHparams:
        """The checkpoint's hyper-parameters."""
        return CometHparams.read(self.folder)

    def settings(self) -> dict[str, object]:
        """Return the options; the encoder's configuration and tokenizer by their content."""
        folders = dict.fromkeys((self.encoder_folder(), self.tokenizer_folder()))
        return {**super().settings(), "encoder": "+".join(revision_of(folder, _ENCODER_FILES) for folder in folders)}

    def encoder_folder(self) -> Path:
        """Return the local folder of the encoder's configuration."""
        return checkpoint_folder(self.encoder or self.hparams.pretrained_model, _ENCODER_FILES)

    def tokenizer_folder(self) -> Path:
        """Return the local folder of the encoder's tokenizer (MiniLM checkpoints use XLM-R's)."""
        if self.hparams.encoder_model == "MiniLM" and self.encoder is None:
            return checkpoint_folder("xlm-roberta-base", _ENCODER_FILES)
        return self.encoder_folder()

    @cached_property
    def encoder_config(self) -> PretrainedConfig:
        """transformers' configuration of the encoder."""
        from transformers import AutoConfig

        with naming(self.encoder_folder()):
            config = AutoConfig.from_pretrained(self.encoder_folder(), trust_remote_code=False)
        return cast("PretrainedConfig", config)

    def load(self) -> CometNetwork:
        from .network import load_comet

        if (found := self.hparams.class_identifier) not in self.classes:
            raise ValueError(
                f"{self.checkpoint} is a {found!r} checkpoint, expected {' or '.join(self.classes)}: load it by "
                "load_utility(path), which picks the class"
            )
        return load_comet(self.folder, self.hparams, self.encoder_config, self.blocks)

    @property
    def longest(self) -> int:
        """Tokens per input: two fewer than the encoder has positions."""
        return int(self.encoder_config.max_position_embeddings) - 2

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, cut as COMET does: with its own special tokens two below `longest`."""
        return self.special_tokens.encode(texts, self.longest - 2 - self.special_tokens.count)


class COMET(CometCheckpoint):
    """Regression over the sentence vectors of hypothesis, reference and source: N + M + 1 encodings serve N·M pairs.

    The estimator sees [mt, ref, mt·ref, |mt−ref|, mt·src, |mt−src|] (without references [mt, src, mt·src, |mt−src|]).
    Its first layer is linear, so each of these blocks has weights of its own, and the products are summed: those of a
    text alone are computed once per text, those of hypothesis and reference once for a pair and its swapped twin.

    Args:
        checkpoint: hub id or folder.
        reference_free: the checkpoint compares hypothesis and source only.
        options: see `CometCheckpoint`.
    """

    encodes_texts = True

    def __init__(self, checkpoint: str, *, reference_free: bool = False, **options: Any) -> None:
        super().__init__(checkpoint, **options)
        self.reference_free = reference_free
        self.needs_reference = self.can_aggregate = self.has_vectors = not reference_free
        self.classes = ("referenceless_regression_metric" if reference_free else "regression_metric",)
        self.blocks = 4 if reference_free else 6

    def prices(self) -> tuple[float, float]:
        """Charge the encoder per text, and per pair what of the head depends on both texts."""
        width = int(self.encoder_config.hidden_size)
        sizes = [width * self.blocks, *self.hparams.hidden_sizes, 1]
        head = sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))
        # Of the first layer, two blocks belong to a pair, and without references all of them to a hypothesis.
        of_texts = width * (self.blocks - 2) * sizes[1] if self.needs_reference else 0
        return (head - of_texts + width) / SENTENCE_TOKENS, float(self.parameters - head)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        return _COMETKernel(self, table, statistics)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """(D, H) weights of the first layer per block."""
        names = "mt src mt·src |mt−src|" if self.reference_free else "mt ref mt·ref |mt−ref| mt·src |mt−src|"
        chunks = cast(torch.nn.Linear, self.network.regression[0]).weight.chunk(self.blocks, dim=1)
        return {name: chunk.T for name, chunk in zip(names.split(), chunks, strict=True)}

    def of_hypothesis(self, mt: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Return the (k, H) products that do not depend on the reference."""
        hidden = mt @ self.weights["mt"] + (mt * source) @ self.weights["mt·src"]
        hidden += (mt - source).abs() @ self.weights["|mt−src|"]
        hidden += cast(torch.nn.Linear, self.network.regression[0]).bias
        return hidden + source @ self.weights["src"] if self.reference_free else hidden

    def of_reference(self, ref: torch.Tensor) -> torch.Tensor:
        """Return the (m, H) products that depend on the reference alone."""
        return ref @ self.weights["ref"]

    def of_both(self, mt: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
        """Return the (k, H) products of two texts, which are the same in either order."""
        return (mt * ref) @ self.weights["mt·ref"] + (mt - ref).abs() @ self.weights["|mt−ref|"]

    def scores(self, hidden: torch.Tensor) -> FloatArray:
        """Return (k,) scores from the sums of all products."""
        return np.asarray(self.network.regression[1:](hidden).squeeze(-1).cpu().double().numpy())


class _COMETKernel:
    def __init__(self, utility: COMET, table: TextTable, statistics: Statistics) -> None:
        self.utility, self.tokens = utility, utility.special_tokens
        self.rows = [self.tokens.join(row) for row in utility.encode_texts([*table.texts, *table.sources])]
        self.first_source, self.sources = len(table.texts), max(len(table.sources), 1)
        self.states = utility.of_each_text([len(row) for row in self.rows], self._encode, statistics)
        self.of_hypothesis, self.of_reference = Once(self._of_hypothesis), Once(self._of_reference)

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        out = np.empty(hypotheses.size)
        mt, of_mt = np.unique(hypotheses * self.sources + sources, return_inverse=True)
        with torch.inference_mode():
            fixed = torch.stack(self.of_hypothesis.get(mt))
            if not self.utility.needs_reference:
                return np.asarray(self.utility.scores(fixed)[of_mt])
            texts, place = np.unique(np.stack([hypotheses, references]), return_inverse=True)
            vectors, place = self._stack(texts), place.reshape(2, -1)
            ref, of_ref = np.unique(references, return_inverse=True)
            alone = torch.stack(self.of_reference.get(ref))
            # Next to its swapped twin, a pair shares `of_both` with it.
            twins = place.min(axis=0) * texts.size + place.max(axis=0)
            order = np.argsort(twins, kind="stable")
            for start in range(0, out.size, _PAIRS_AT_ONCE):
                part = order[start : start + _PAIRS_AT_ONCE]
                distinct, of_pair = np.unique(twins[part], return_inverse=True)
                one, other = (vectors[self._index(side)] for side in np.divmod(distinct, texts.size))
                both = self.utility.of_both(one, other)
                if distinct.size < part.size:
                    both = both[self._index(of_pair.reshape(-1))]
                parts = fixed[self._index(of_mt[part])] + alone[self._index(of_ref[part])]
                out[part] = self.utility.scores(parts + both)
        return out

    def _of_hypothesis(self, keys: IntArray) -> torch.Tensor:
        """Compute products for keys that number hypothesis and source."""
        mt, source = np.divmod(keys, self.sources)
        return self.utility.of_hypothesis(self._stack(mt), self._stack(source + self.first_source))

    def _of_reference(self, texts: IntArray) -> torch.Tensor:
        return self.utility.of_reference(self._stack(texts))

    def vectors(self, texts: IntArray) -> FloatArray:
        """Return (k, D) sentence vectors."""
        return np.asarray(self._stack(texts).cpu().double().numpy())

    def vector_scores(self, hypotheses: IntArray, vectors: FloatArray) -> FloatArray:
        """Return (k, K) scores against reference vectors, all with the first source."""
        out = np.empty((hypotheses.size, len(vectors)))
        with torch.inference_mode():
            own, fixed = self._stack(hypotheses), torch.stack(self.of_hypothesis.get(hypotheses * self.sources))
            theirs = torch.from_numpy(np.ascontiguousarray(vectors)).to(own)
            for column, (vector, alone) in enumerate(zip(theirs, self.utility.of_reference(theirs), strict=True)):
                out[:, column] = self.utility.scores(fixed + alone + self.utility.of_both(own, vector))
        return out

    def _stack(self, texts: IntArray) -> torch.Tensor:
        return torch.stack(self.states.get(texts))

    def _index(self, places: IntArray) -> torch.Tensor:
        return torch.from_numpy(places).to(self.utility.device)

    def _encode(self, texts: IntArray) -> torch.Tensor:
        inputs = padded([self.rows[k] for k in texts], self.tokens.pad_id, self.utility.device)
        states, last = self.utility.network(**inputs)
        mask, how = inputs["attention_mask"], self.utility.hparams.pool
        if how == "default":  # the first token of the last layer, whatever layers are mixed
            return cast(torch.Tensor, last[:, 0])
        if how == "cls":
            return cast(torch.Tensor, states[:, 0])
        present = mask.bool().unsqueeze(-1)
        if how == "max":
            return cast(torch.Tensor, states.masked_fill(~present, -np.inf).amax(dim=1))
        if how == "avg":
            summed = states.masked_fill(~present, 0.0).sum(dim=1)
            return cast(torch.Tensor, summed / mask.sum(dim=1, keepdim=True).to(states.dtype))
        raise ValueError(f"{self.utility.checkpoint} has pool={how!r}: supported are avg, max, cls and default")
