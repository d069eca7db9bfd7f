"""Unified COMET metrics, whose texts go through the encoder together: CometKiwi, UniTE, XCOMET and XCOMET-lite.

CometKiwi (Rei et al. 2022, https://aclanthology.org/2022.wmt-1.60), UniTE (Wan et al. 2022), XCOMET (Guerreiro et al.
2024, https://aclanthology.org/2024.tacl-1.54).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...candidates import FloatArray, IntArray
from ...scoring.utility import Kernel, Statistics, TextTable
from ..network import padded
from .regression import CometCheckpoint

Probabilities = npt.NDArray[np.float32]
_Results = dict[tuple[int, ...], tuple[float, Probabilities]]  # text numbers → score and word tags
_PAIRS_AT_ONCE = 16384  # whose word tags are held at a time
# XCOMET's own: weights of the three passes' word tags, of their scores and of the error score; MQM's penalties per
# severity (none, minor, major, critical) and the sum at which a text is worth nothing.
_SPAN_WEIGHTS = (0.1667, 0.3333, 0.5)
_SCORE_WEIGHTS = np.array([0.12, 0.33, 0.33, 0.22])
_SEVERITY = np.array([0.0, 1.0, 5.0, 10.0])
_WORST = 25.0
_NO_TAGS: Probabilities = np.zeros((0, 0), dtype=np.float32)
_TYPED = ("BERT", "DeBERTa")  # encoders that get segment types from COMET; RemBERT has them, but is given none


class UnifiedMetric(CometCheckpoint):
    """A metric over inputs such as `hypothesis source`, `hypothesis reference`, `hypothesis source reference`.

    With source and reference the three are averaged; XCOMET weights them and adds an error score from its word tags.

    Args:
        checkpoint: hub id or folder.
        reference_free: use hypothesis and source only; default: whether the checkpoint was trained so (CometKiwi).
        options: see `CometCheckpoint`.
    """

    classes = ("unified_metric", "xcomet_metric")
    blocks = 1

    def __init__(self, checkpoint: str, *, reference_free: bool | None = None, **options: Any) -> None:
        super().__init__(checkpoint, **options)
        self._reference_free = reference_free

    @property
    def reference_free(self) -> bool:
        """Whether only hypothesis and source are compared."""
        if self._reference_free is None:
            self._reference_free = "ref" not in self.hparams.input_segments
        return self._reference_free

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]
        """Whether references are part of the input."""
        return not self.reference_free

    @property
    def needs_source(self) -> bool:  # type: ignore[override]
        """Whether sources are part of the input."""
        return "src" in self.hparams.input_segments

    def inputs(self) -> list[tuple[str, ...]]:
        """Return the segments of each forward pass."""
        wanted = ("src",) if self.reference_free else ("src", "ref")
        parts = [part for part in wanted if part in self.hparams.input_segments]
        if not parts or (parts != ["src"] and "ref" not in parts):
            raise ValueError(
                f"{self.checkpoint} was trained on {', '.join(self.hparams.input_segments)}: "
                f"reference_free={self.reference_free} leaves nothing to compare the hypothesis with"
            )
        if parts == ["src", "ref"]:
            return [("mt", "src"), ("mt", "ref"), ("mt", "src", "ref")]
        return [("mt", *parts)]

    def prices(self) -> tuple[float, float]:
        """Charge per text, of three passes, that of hypothesis and source: all pairs of a hypothesis share it."""
        passes = len(self.inputs())
        return float(self.parameters * max(passes - 1, 1)), float(self.parameters if passes == 3 else 0)

    def kernel(self, table: TextTable, statistics: Statistics) -> Kernel:
        return _UnifiedKernel(self, table, statistics)


class _UnifiedKernel:
    def __init__(self, utility: UnifiedMetric, table: TextTable, statistics: Statistics) -> None:
        self.utility, self.statistics = utility, statistics
        # XCOMET proper, whose word tags enter the score.
        self.explains = utility.hparams.class_identifier == "xcomet_metric"
        self.tokens = utility.special_tokens
        texts, sources = utility.encode_texts(table.texts), utility.encode_texts(table.sources)
        self.ids = {"mt": texts, "ref": texts, "src": sources}
        self.with_source: _Results = {}  # this pass does not depend on the reference, so it is kept

    def __call__(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        blocks = [slice(start, start + _PAIRS_AT_ONCE) for start in range(0, hypotheses.size, _PAIRS_AT_ONCE)]
        return np.concatenate([self._block(hypotheses[part], references[part], sources[part]) for part in blocks])

    def _block(self, hypotheses: IntArray, references: IntArray, sources: IntArray) -> FloatArray:
        of = {"mt": hypotheses, "ref": references, "src": sources}
        passes: list[list[tuple[float, Probabilities]]] = []
        for segments in self.utility.inputs():
            keys = list(zip(*(of[part].tolist() for part in segments), strict=True))
            results = self._run(segments, keys, self.with_source if segments == ("mt", "src") else {})
            passes.append([results[key] for key in keys])
        scores = np.array([[score for score, _ in results] for results in passes])
        if not self.explains:
            return np.asarray(scores.mean(axis=0))
        three = len(passes) == 3
        spans = []
        for pair in zip(*passes, strict=True):
            shares = _SPAN_WEIGHTS if three else (1.0,)
            parts = [share * tags for share, (_, tags) in zip(shares, pair, strict=True)]
            spans.append(span_score(sum(parts, np.zeros_like(parts[0]))))
        weights = _SCORE_WEIGHTS[:3] if three else _SCORE_WEIGHTS[:3].sum(keepdims=True)
        return np.asarray(weights @ np.minimum(scores, 1.0) + _SCORE_WEIGHTS[3] * np.array(spans))

    def _run(self, segments: tuple[str, ...], keys: list[tuple[int, ...]], known: _Results) -> _Results:
        """Add to `known` what one pass makes of the texts of each key."""
        new = [key for key in dict.fromkeys(keys) if key not in known]
        rows = [self.tokens.join(*(self.ids[part][k] for part, k in zip(segments, key, strict=True))) for key in new]
        rows = [row[: self.utility.longest] for row in rows]
        # Tokens of the hypothesis, with the special tokens it would have alone.
        first = [len(self.ids["mt"][key[0]]) + self.tokens.count for key in new]

        def forward(batch: IntArray) -> list[tuple[float, Probabilities]]:
            return self._forward([rows[k] for k in batch], [first[k] for k in batch])

        def receive(batch: IntArray, results: list[tuple[float, Probabilities]]) -> None:
            known.update(zip((new[k] for k in batch), results, strict=True))

        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        self.utility.encode(lengths, forward, receive, self.statistics)
        return known

    def _forward(self, rows: list[list[int]], first: list[int]) -> list[tuple[float, Probabilities]]:
        """Return the score and the word tags' probabilities of each row."""
        network, device = self.utility.network, self.utility.device
        width = max(map(len, rows))
        types = [[0] * size + [1] * (width - size) for size in first]
        typed = self.utility.hparams.encoder_model in _TYPED
        sentence, words = network(**padded(rows, self.tokens.pad_id, device, types if typed else None))
        scores: list[float] = network.regression(sentence[:, 0]).squeeze(-1).cpu().double().tolist()
        if not self.explains or network.hidden2tag is None:
            return [(score, _NO_TAGS) for score in scores]
        tags = network.hidden2tag(words).float().softmax(dim=-1).cpu().numpy()
        return [(score, row[:size].copy()) for score, row, size in zip(scores, tags, first, strict=True)]


def span_score(probabilities: Probabilities | FloatArray) -> float:
    """Return 1 − (minor + 5·major + 10·critical) / 25 over the error spans of one hypothesis, at least 0.

    A span is a run of error tags with the severity of its first token; a run that is still open at the last token does
    not count, as in the reference implementation.
    """
    labels = probabilities.argmax(axis=1)
    wrong = labels > 0
    starts = np.flatnonzero(wrong & ~np.concatenate([[False], wrong[:-1]]))
    if wrong.size and wrong[-1]:
        starts = starts[:-1]
    penalty = min(float(_SEVERITY[labels[starts]].sum()), _WORST)
    return (_WORST - penalty) / _WORST
