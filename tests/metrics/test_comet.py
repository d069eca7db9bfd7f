"""COMET, CometKiwi and XCOMET on random checkpoints in the public format, against plain one-by-one programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

from hf_acpmbr.metrics.comet.network import sparsemax
from hf_acpmbr.metrics.comet.unified import span_score
from hf_acpmbr.scoring import load_utility

from .checkpoints import SENTENCES, write_comet

HYPOTHESES, REFERENCES, SOURCE = SENTENCES[:4], SENTENCES[3:8], SENTENCES[8]
LONG = " ".join(SENTENCES)


class PlainComet:
    """COMET's arithmetic written down pair by pair, from the checkpoint's files."""

    def __init__(self, folder: Path) -> None:
        self.hparams = yaml.safe_load((folder / "hparams.yaml").read_text())
        state = torch.load(folder / "checkpoints" / "model.ckpt", weights_only=True)["state_dict"]
        path = self.hparams["pretrained_model"]
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = AutoModel.from_pretrained(path, attn_implementation="eager").eval()
        self.scalars = torch.cat([state[f"layerwise_attention.scalar_parameters.{k}"] for k in range(4)])
        self.gamma = float(state["layerwise_attention.gamma"])
        self.linear = [(state[f"estimator.ff.{k}.weight"], state[f"estimator.ff.{k}.bias"]) for k in (0, 3, 6)]
        self.tagger = (state["hidden2tag.weight"], state["hidden2tag.bias"]) if "hidden2tag.weight" in state else None

    def layers(self, ids: list[int]) -> list[torch.Tensor]:
        with torch.no_grad():
            out = self.model(torch.tensor([ids]), output_hidden_states=True)
        return [layer[0] for layer in out.hidden_states]

    def mix(self, layers: list[torch.Tensor]) -> torch.Tensor:
        if self.hparams["layer_transformation"] == "sparsemax":
            weights = bisection_sparsemax(self.scalars)
        else:
            weights = torch.exp(self.scalars) / torch.exp(self.scalars).sum()
        if self.hparams["layer_norm"]:
            layers = [(layer - layer.mean()) / torch.sqrt(layer.var(unbiased=False) + 1e-12) for layer in layers]
        return self.gamma * sum(weight * layer for weight, layer in zip(weights, layers, strict=True))

    def estimate(self, features: torch.Tensor) -> float:
        for position, (weight, bias) in enumerate(self.linear):
            features = weight @ features + bias
            features = torch.tanh(features) if position < 2 else features
        return float(features)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer(text, truncation=True, max_length=62)["input_ids"]

    def vector(self, text: str) -> torch.Tensor:
        return self.mix(self.layers(self.ids(text))).mean(dim=0)

    def regression(self, hypothesis: str, reference: str, source: str) -> float:
        h, r, s = self.vector(hypothesis), self.vector(reference), self.vector(source)
        return self.estimate(torch.cat([h, r, h * r, (h - r).abs(), h * s, (h - s).abs()]))

    def joint(self, *texts: str) -> tuple[float, torch.Tensor]:
        parts = [self.ids(text)[1:-1] for text in texts]
        ids = [0, *parts[0]]
        for part in parts[1:]:
            ids += [2, 2, *part]
        layers = self.layers([*ids, 2][:64])
        score = self.estimate(self.mix(layers)[0])
        if self.tagger is None:
            return score, torch.zeros(0)
        logits = layers[self.hparams["word_layer"]] @ self.tagger[0].T + self.tagger[1]
        return score, torch.softmax(logits, dim=-1)[: len(parts[0]) + 2]


def bisection_sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """The threshold τ with Σ max(z − τ, 0) = 1, found by bisection."""
    low, high = float(scores.min()) - 1.0, float(scores.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (scores - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (scores - low).clamp(min=0)


def plain_span_score(tags: torch.Tensor) -> float:
    """Reads the tags from left to right as an annotator would."""
    penalty, open_severity = 0, None
    for row in tags:
        label = int(row.argmax())
        if label and open_severity is None:
            open_severity = {1: 1, 2: 5, 3: 10}[label]
        elif not label and open_severity is not None:
            penalty, open_severity = penalty + open_severity, None
    return (25 - min(penalty, 25)) / 25


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("transformation", ["softmax", "sparsemax"])
def test_comet_equals_the_plain_program(tmp_path: Path, transformation: str, layer_norm: bool) -> None:
    folder = write_comet(
        tmp_path, 6, class_identifier="regression_metric", layer_transformation=transformation, layer_norm=layer_norm
    )
    plain = PlainComet(folder)
    hypotheses = [*HYPOTHESES, LONG]
    expected = [[plain.regression(h, r, SOURCE) for r in REFERENCES] for h in hypotheses]
    scorer = load_utility(str(folder), batch_tokens=100).prepare(hypotheses, REFERENCES, SOURCE)
    rows, columns = np.divmod(np.arange(25), 5)
    np.testing.assert_allclose(scorer(rows, columns).reshape(5, 5), expected, atol=1e-5)
    assert scorer.statistics.encoded == len({*hypotheses, *REFERENCES, SOURCE}), "N + M + 1 encodings, not N·M"


def test_the_head_multiplies_each_text_once_and_each_two_texts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rounds: products are counted by their rows, and the scores are those of the whole estimator."""
    folder = write_comet(tmp_path, 6, class_identifier="regression_metric")
    utility = load_utility(str(folder))
    rows: dict[str, int] = {}
    for part in ("of_hypothesis", "of_reference", "of_both"):
        own = getattr(utility, part)

        def counted(*vectors: torch.Tensor, part: str = part, own: Callable[..., torch.Tensor] = own) -> torch.Tensor:
            rows[part] = rows.get(part, 0) + len(vectors[0])
            return own(*vectors)

        monkeypatch.setattr(utility, part, counted)
    texts = SENTENCES[:6]
    scorer = utility.prepare(texts, texts, SOURCE)
    order = np.random.default_rng(0).permutation(36)
    found = np.empty(36)
    found[order[:10]] = scorer(*np.divmod(order[:10], 6))
    found[order] = scorer(*np.divmod(order, 6))
    assert (rows["of_hypothesis"], rows["of_reference"]) == (6, 6)
    assert rows["of_both"] <= 10 + 6 * 7 // 2, "a pair and its swapped twin share what depends on both"
    plain = PlainComet(folder)
    expected = [plain.regression(texts[i], texts[j], SOURCE) for i in range(6) for j in range(6)]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_comet_scores_several_sources(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 6, class_identifier="regression_metric")
    plain = PlainComet(folder)
    triples = list(zip(SENTENCES[:6], SENTENCES[2:8], SENTENCES[4:10], strict=True))
    expected = [plain.regression(*triple) for triple in triples]
    np.testing.assert_allclose(load_utility(str(folder)).score(*zip(*triples, strict=True)), expected, atol=1e-5)


def test_comet_vectors_and_aggregates(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 6, class_identifier="regression_metric")
    plain = PlainComet(folder)
    scorer = load_utility(str(folder)).prepare(HYPOTHESES, REFERENCES, SOURCE)
    _, references = scorer.vectors()
    np.testing.assert_allclose(references[1], plain.vector(REFERENCES[1]), atol=1e-5)
    weights = np.array([[0.2] * 5, [1.0, 0, 0, 0, 0]])
    scores = scorer.aggregate_scores(np.arange(4), weights)
    np.testing.assert_allclose(scores[:, 1], scorer(np.arange(4), np.zeros(4, dtype=int)), atol=1e-5)
    mean = torch.tensor(references.mean(axis=0), dtype=torch.float32)
    h, s = plain.vector(HYPOTHESES[2]), plain.vector(SOURCE)
    expected = plain.estimate(torch.cat([h, mean, h * mean, (h - mean).abs(), h * s, (h - s).abs()]))
    assert scores[2, 0] == pytest.approx(expected, abs=1e-5)


def test_reference_free_regression(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 4, class_identifier="referenceless_regression_metric")
    plain = PlainComet(folder)
    h, s = plain.vector(HYPOTHESES[0]), plain.vector(SOURCE)
    expected = plain.estimate(torch.cat([h, s, h * s, (h - s).abs()]))
    utility = load_utility(str(folder))
    assert utility.score([HYPOTHESES[0]], None, [SOURCE])[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("encoder", ["xlm-roberta", "xlm-roberta-xl"])
def test_cometkiwi_equals_the_plain_program_and_ignores_references(tmp_path: Path, encoder: str) -> None:
    folder = write_comet(
        tmp_path, 1, encoder=encoder, class_identifier="unified_metric", input_segments=["mt", "src"], sent_layer="mix"
    )
    plain = PlainComet(folder)
    hypotheses = [*HYPOTHESES, LONG]
    scorer = load_utility(str(folder)).prepare(hypotheses, REFERENCES, SOURCE)
    rows, columns = np.divmod(np.arange(25), 5)
    matrix = scorer(rows, columns).reshape(5, 5)
    np.testing.assert_allclose(matrix[:, 0], [plain.joint(h, SOURCE)[0] for h in hypotheses], atol=1e-5)
    assert (matrix == matrix[:, :1]).all()
    assert scorer.calls == 5, "a reference-free metric is scored once for each hypothesis"


def test_unite_averages_three_inputs(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 1, class_identifier="unified_metric", input_segments=["mt", "src", "ref"])
    plain = PlainComet(folder)
    h, r = HYPOTHESES[0], REFERENCES[0]
    expected = np.mean([plain.joint(h, SOURCE)[0], plain.joint(h, r)[0], plain.joint(h, SOURCE, r)[0]])
    assert load_utility(str(folder)).score([h], [r], [SOURCE])[0] == pytest.approx(expected, abs=1e-5)


def test_xcomet_equals_the_plain_program(tmp_path: Path) -> None:
    folder = write_comet(
        tmp_path,
        1,
        tags=4,
        encoder="xlm-roberta-xl",
        class_identifier="xcomet_metric",
        word_layer=1,
        error_labels=["minor", "major", "critical"],
        word_level_training=True,
    )
    plain = PlainComet(folder)
    scorer = load_utility(str(folder), batch_tokens=300).prepare(HYPOTHESES, REFERENCES, SOURCE)
    rows, columns = np.divmod(np.arange(20), 5)
    expected, penalties = [], []
    for h in HYPOTHESES:
        for r in REFERENCES:
            passes = [plain.joint(h, SOURCE), plain.joint(h, r), plain.joint(h, SOURCE, r)]
            tags = sum(w * p[1] for w, p in zip((0.1667, 0.3333, 0.5), passes, strict=True))
            penalties.append(plain_span_score(tags))
            sentence = sum(w * min(p[0], 1.0) for w, p in zip((0.12, 0.33, 0.33), passes, strict=True))
            expected.append(sentence + 0.22 * penalties[-1])
    np.testing.assert_allclose(scorer(rows, columns), expected, atol=1e-5)
    assert len(set(penalties)) > 2, "the tagger must find errors, or its part is not tested"
    free = load_utility(str(folder), reference_free=True)
    score, tags = plain.joint(HYPOTHESES[0], SOURCE)
    expected_free = 0.78 * min(score, 1.0) + 0.22 * plain_span_score(tags)
    assert free.score([HYPOTHESES[0]], None, [SOURCE])[0] == pytest.approx(expected_free, abs=1e-5)
    # A regression beyond 1 counts as 1.
    path = folder / "checkpoints" / "model.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    last = [name for name in checkpoint["state_dict"] if name.startswith("estimator.") and name.endswith("bias")][-1]
    checkpoint["state_dict"][last] += 5.0
    torch.save(checkpoint, path)
    high = load_utility(str(folder)).prepare(HYPOTHESES, REFERENCES, SOURCE)(rows, columns)
    np.testing.assert_allclose(high, 0.78 + 0.22 * np.array(penalties), atol=1e-5)


def test_spans_are_read_as_the_reference_implementation_does() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 30):
        for _ in range(30):
            tags = rng.dirichlet([1.0, 0.5, 0.5, 0.5], size=size)
            assert span_score(tags) == pytest.approx(plain_span_score(torch.tensor(tags)))


def test_sparsemax_is_the_projection() -> None:
    for seed in range(20):
        scores = torch.randn(9, generator=torch.Generator().manual_seed(seed))
        np.testing.assert_allclose(sparsemax(scores), bisection_sparsemax(scores.double()), atol=1e-6)


def test_unknown_classes_are_refused(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 6, class_identifier="other_metric")
    with pytest.raises(ValueError, match="'other_metric' checkpoint; supported are"):
        load_utility(str(folder))


@pytest.mark.parametrize(
    ("pool", "layer"), [("cls", "mix"), ("max", "mix"), ("avg", 2), ("max", 0), ("default", "mix"), ("default", 1)]
)
def test_sentence_vectors_of_every_pooling_and_layer(tmp_path: Path, pool: str, layer: str | int) -> None:
    """COMET's `default` is the first token of the last layer, whatever layer is named."""
    folder = write_comet(tmp_path, 6, class_identifier="regression_metric", pool=pool, layer=layer)
    plain = PlainComet(folder)
    layers = plain.layers(plain.ids(HYPOTHESES[1]))
    states = layers[-1] if pool == "default" else plain.mix(layers) if layer == "mix" else layers[int(layer)]
    expected = {"avg": states.mean(dim=0), "max": states.amax(dim=0)}.get(pool, states[0])
    vectors, _ = load_utility(str(folder), batch_tokens=100).prepare(HYPOTHESES, REFERENCES, SOURCE).vectors()
    np.testing.assert_allclose(vectors[1], expected, atol=1e-5)


def test_metrics_of_hypothesis_and_reference_need_no_source(tmp_path: Path) -> None:
    folder = write_comet(tmp_path, 1, class_identifier="unified_metric", input_segments=["mt", "ref"])
    plain = PlainComet(folder)
    utility = load_utility(str(folder))
    assert not utility.needs_source
    expected = [plain.joint(h, r)[0] for h, r in zip(HYPOTHESES, REFERENCES, strict=False)]
    np.testing.assert_allclose(utility.score(HYPOTHESES, REFERENCES[:4]), expected, atol=1e-5)
    with pytest.raises(ValueError, match="leaves nothing to compare the hypothesis with"):
        load_utility(str(folder), reference_free=True).score(HYPOTHESES)


@pytest.mark.parametrize(("encoder", "model", "typed"), [("bert", "BERT", True), ("rembert", "RemBERT", False)])
def test_only_bert_gets_segment_types(tmp_path: Path, encoder: str, model: str, typed: bool) -> None:
    folder = write_comet(
        tmp_path,
        1,
        encoder=encoder,
        encoder_model=model,
        class_identifier="unified_metric",
        input_segments=["mt", "src"],
    )
    plain = PlainComet(folder)
    ids = plain.tokenizer(HYPOTHESES[0], SOURCE)["input_ids"]
    first = len(plain.ids(HYPOTHESES[0]))
    types = [0] * first + [int(typed)] * (len(ids) - first)
    with torch.no_grad():
        out = plain.model(torch.tensor([ids]), token_type_ids=torch.tensor([types]), output_hidden_states=True)
    expected = plain.estimate(plain.mix([layer[0] for layer in out.hidden_states])[0])
    score = load_utility(str(folder)).score([HYPOTHESES[0]], None, [SOURCE])[0]
    assert score == pytest.approx(expected, abs=1e-5)


def test_source_is_required(tmp_path: Path) -> None:
    utility = load_utility(str(write_comet(tmp_path, 6, class_identifier="regression_metric")))
    with pytest.raises(ValueError, match="needs the source"):
        utility.prepare(["a"], ["b"])
    with pytest.raises(ValueError, match="needs sources"):
        utility.score(["a"], ["b"])
