"""COMET (Rei et al. 2020, 2022; https://aclanthology.org/2022.wmt-1.52): regression on cached sentence vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from ...candidates import FloatArray, IntArray
from ...scoring.checkpoints import checkpoint_folder, naming, revision_of
from ...scoring.utility import Kernel, Statistics, TextTable
from ..encoding import TextVectors
from ..network import NetworkOptions, NetworkUtility
from .hparams import CometHparams

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig
    from typing_extensions import Unpack

    from .network import CometNetwork

_ENCODER_FILES = ("config.json", "tokenizer*", "sentencepiece*", "spm.model", "vocab*", "special_tokens_map.json")
_PAIRS_AT_ONCE = 8192
_POOLINGS = {"avg": "mean"}  # COMET's words for what is called otherwise elsewhere
_CITATION = (
    "@inproceedings{rei-etal-2022-comet, title = {{COMET}-22: Unbabel-{IST} 2022 Submission for the Metrics Shared "
    "Task}, author = {Rei, Ricardo and C. de Souza, Jos{\\'e} G. and Alves, Duarte and Zerva, Chrysoula and "
    "Farinha, Ana C and Glushkova, Taisiya and Lavie, Alon and Coheur, Luisa and Martins, Andr{\\'e} F. T.}, "
    "booktitle = {Proceedings of WMT}, year = {2022}}"
)


class CometOptions(NetworkOptions, total=False):
    """The options that every COMET checkpoint takes."""

    encoder: str | None


class CometCheckpoint(NetworkUtility["CometNetwork"]):
    """What all utilities from COMET checkpoints share.

    Args:
        checkpoint: hub id or folder with hparams.yaml and checkpoints/model.ckpt.
        encoder: folder or hub id of the encoder's config.json and tokeniser; default: what the checkpoint names.
        options: see `NetworkUtility`.
    """

    files = ("hparams.yaml", "checkpoints/*.ckpt", "config.json", "*.safetensors", "pytorch_model.bin")
    needs_source = True
    homepage = "https://github.com/Unbabel/COMET"
    citation = _CITATION

    def __init__(self, checkpoint: str, *, encoder: str | None = None, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(checkpoint, **options)
        self.encoder = encoder
        self._hparams: CometHparams | None = None
        self._config: PretrainedConfig | None = None

    @property
    def hparams(self) -> CometHparams:
        """The checkpoint's hyper-parameters."""
        if self._hparams is None:
            self._hparams = CometHparams.read(self.folder)
        return self._hparams

    def settings(self) -> dict[str, object]:
        """The options; the encoder's configuration and tokeniser by their content."""
        folders = dict.fromkeys((self.encoder_folder(), self.tokenizer_folder()))
        return {**super().settings(), "encoder": "+".join(revision_of(folder, _ENCODER_FILES) for folder in folders)}

    def encoder_folder(self) -> Path:
        """Local folder of the encoder's configuration."""
        return checkpoint_folder(self.encoder or self.hparams.pretrained_model, _ENCODER_FILES)

    def tokenizer_folder(self) -> Path:
        """Local folder of the encoder's tokeniser (MiniLM checkpoints use XLM-R's)."""
        if self.hparams.encoder_model == "MiniLM" and self.encoder is None:
            return checkpoint_folder("xlm-roberta-base", _ENCODER_FILES)
        return self.encoder_folder()

    def encoder_config(self) -> PretrainedConfig:
        """transformers' configuration of the encoder."""
        from transformers import AutoConfig

        if self._config is None:
            with naming(self.encoder_folder()):
                self._config = AutoConfig.from_pretrained(self.encoder_folder(), trust_remote_code=False)
        return self._config

    def longest(self) -> int:
        """Tokens of one input: two fewer than the encoder has positions."""
        return int(self.encoder_config().max_position_embeddings) - 2

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text as COMET cuts them: with its own special tokens it must stay two below `longest`."""
        tokens = self.special_tokens()
        return tokens.encode(texts, self.longest() - 2 - tokens.count)

    def expect(self, *classes: str) -> None:
        """Refuse checkpoints of another class."""
        found = self.hparams.class_identifier
        if found not in classes:
            raise ValueError(
                f"{self.checkpoint} is a {found!r} checkpoint, expected {' or '.join(classes)}: load it by "
                "load_utility(path), which picks the class"
            )


class VectorComet(CometCheckpoint):
    """A metric of the sentence vectors of hypothesis, reference and source: N + M + 1 encodings serve N·M pairs.

    Subclasses say what COMET calls them (`kind`), how many vectors their estimator sees (`blocks`) and what follows the
    vectors (`head`).
    """

    encodes_texts = True

    can_aggregate = True
    has_vectors = True
    kind: str
    blocks: int

    @abstractmethod
    def head(self) -> Head:
        """From sentence vectors to scores."""

    def load(self) -> CometNetwork:
        from .network import load_comet

        self.expect(self.kind)
        return load_comet(self.folder, self.hparams, self.encoder_config(), self.blocks)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        """Sentence vectors of texts and sources."""
        return _COMETKernel(self, table, statistics)


class COMET(VectorComet):
    """Regression over the sentence vectors.

    Args:
        checkpoint: hub id or folder.
        reference_free: the checkpoint compares hypothesis and source only.
        options: see `CometCheckpoint`.
    """

    description = (
        "COMET: regression of human direct assessments from sentence vectors of source, hypothesis, reference."
    )

    def __init__(self, checkpoint: str, *, reference_free: bool = False, **options: Unpack[CometOptions]) -> None:
        super().__init__(checkpoint, **options)
        self.reference_free = reference_free
        self.needs_reference = self.can_aggregate = self.has_vectors = not reference_free
        self.kind = "referenceless_regression_metric" if reference_free else "regression_metric"
        self.blocks = 4 if reference_free else 6

    def head(self) -> Head:
        """The estimator."""
        return _Regression(self.network.estimator.ff, referenced=self.needs_reference)


class RankingMetric(VectorComet):
    """1 / (1 + distance), with the harmonic mean of the hypothesis's distances from source and reference.

    COMET's ranking metrics: Rei et al. 2020, https://aclanthology.org/2020.emnlp-main.213.

    Args:
        checkpoint: hub id or folder.
        options: see `CometCheckpoint`.
    """

    description = "COMET's ranking metric: distances of the hypothesis's vector from source and reference."
    kind = "ranking_metric"
    blocks = 0

    def head(self) -> Head:
        """Distances of the vectors."""
        return _Nearness()


class _COMETKernel:
    def __init__(self, utility: VectorComet, table: TextTable, statistics: Statistics) -> None:
        tokens = utility.special_tokens()
        rows = [tokens.join(row) for row in utility.encode_texts([*table.texts, *table.sources])]
        self.utility = utility
        self.first_source = len(table.texts)
        self.pooling = _POOLINGS.get(utility.hparams.pool, utility.hparams.pool)
        self.states = TextVectors(utility, rows, tokens.pad_id, self._encode, statistics)
        self.head = utility.head()

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        import torch

        out = np.empty(hypotheses.size)
        h, h_place = np.unique(np.stack([hypotheses, sources]), axis=1, return_inverse=True)
        h_place = h_place.reshape(-1)
        with torch.inference_mode():
            own = self._stack(h[0])
            fixed = self.head.fixed(own, self._stack(h[1] + self.first_source))
            if not self.utility.needs_reference:
                return np.asarray(self.head.pairs(fixed, own, None).double().cpu().numpy()[h_place])
            r, r_place = np.unique(references, return_inverse=True)
            theirs = self._stack(r)
            for start in range(0, out.size, _PAIRS_AT_ONCE):
                part = slice(start, start + _PAIRS_AT_ONCE)
                i, j = (torch.from_numpy(place.reshape(-1)[part]).to(own.device) for place in (h_place, r_place))
                out[part] = self.head.pairs(fixed[i], own[i], theirs[j]).double().cpu().numpy()
        return out

    def vectors(self, texts: IntArray) -> FloatArray:
        """(k, D) sentence vectors."""
        return np.asarray(self._stack(texts).double().cpu().numpy())

    def vector_scores(self, hypotheses: IntArray, vectors: FloatArray) -> FloatArray:
        """(k, K) scores against reference vectors, all with the first source."""
        import torch

        out = np.empty((hypotheses.size, len(vectors)))
        with torch.inference_mode():
            own = self._stack(hypotheses)
            fixed = self.head.fixed(own, self._stack(np.full(hypotheses.size, self.first_source)))
            theirs = torch.from_numpy(np.ascontiguousarray(vectors)).to(own)
            for column, vector in enumerate(theirs):
                out[:, column] = self.head.pairs(fixed, own, vector.expand_as(own)).double().cpu().numpy()
        return out

    def aggregate_scores(self, hypotheses: IntArray, references: IntArray, weights: FloatArray) -> FloatArray:
        """(k, K) scores against weighted mean reference vectors (https://arxiv.org/abs/2402.04251)."""
        return self.vector_scores(hypotheses, weights @ self.vectors(references))

    def _stack(self, texts: IntArray) -> torch.Tensor:
        import torch

        return torch.stack(self.states.get(texts))

    def _encode(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        from .network import pool

        states, last = self.utility.network(ids, mask)
        if self.pooling == "default":  # the first token of the last layer, whatever layers are mixed
            return pool(last, mask, "cls")
        return pool(states, mask, self.pooling)


class Head(Protocol):
    """What follows the sentence vectors of k hypotheses."""

    def fixed(self, mt: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """(k, ...) all that does not depend on the reference."""
        ...

    def pairs(self, fixed: torch.Tensor, mt: torch.Tensor, ref: torch.Tensor | None) -> torch.Tensor:
        """(k,) scores; None for a metric without references."""
        ...


class _Regression:
    """The estimator over [mt, ref, mt·ref, |mt−ref|, mt·src, |mt−src|] (without ref: [mt, src, mt·src, |mt−src|]).

    Its first layer is linear, so the blocks that do not depend on the reference are summed once for each hypothesis.
    """

    def __init__(self, layers: torch.nn.Sequential, *, referenced: bool) -> None:
        self.rest = layers[1:]
        first = cast("torch.nn.Linear", layers[0])
        blocks = first.weight.chunk(6 if referenced else 4, dim=1)
        self.bias = first.bias
        if referenced:
            self.mt, self.ref, self.product, self.difference, self.source_product, self.source_difference = blocks
            self.source: torch.Tensor | None = None
        else:
            self.mt, self.source, self.source_product, self.source_difference = blocks

    def fixed(self, mt: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        hidden = mt @ self.mt.T + (mt * source) @ self.source_product.T
        hidden = hidden + (mt - source).abs() @ self.source_difference.T + self.bias
        if self.source is not None:
            hidden = hidden + source @ self.source.T
        return hidden

    def pairs(self, fixed: torch.Tensor, mt: torch.Tensor, ref: torch.Tensor | None) -> torch.Tensor:
        hidden = fixed
        if ref is not None:
            hidden = fixed + ref @ self.ref.T + (mt * ref) @ self.product.T + (mt - ref).abs() @ self.difference.T
        scores: torch.Tensor = self.rest(hidden).squeeze(-1)
        return scores


class _Nearness:
    def fixed(self, mt: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional

        return functional.pairwise_distance(mt, source)

    def pairs(self, fixed: torch.Tensor, mt: torch.Tensor, ref: torch.Tensor | None) -> torch.Tensor:
        distance = fixed
        if ref is not None:
            near = self.fixed(mt, ref)
            distance = 2 * near * fixed / (near + fixed)
        return 1 / (1 + distance)
