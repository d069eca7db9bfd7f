"""Scores of the original programs: tiny checkpoints saved by them, and (marked `network`) the published weights."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from transformers.utils.import_utils import is_protobuf_available

from hf_acpmbr.scoring import Utility, load_utility

from .checkpoints import write_hub_cache

ENCODERS = {
    "xlm-roberta-large": "xlm-roberta-large",
    "facebook/xlm-roberta-xl": "xlm-roberta-xl",
    "microsoft/mdeberta-v3-base": "mdeberta-v3-base",
}
CASES = [
    *((name, "full") for name in ("reg_wmt22", "legacy20", "refless", "uni_kiwi_patch", "uni_mtref", "bleurt20")),
    *((name, key) for name in ("uni_unite", "xcomet", "xlite") for key in ("full", "noref")),
]


class Goldens:
    """The inputs and scores of ../shared/data/metric_goldens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with gzip.open(folder / "inputs.jsonl.gz", "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        self.texts = {key: [row[key] for row in rows] for key in ("mt", "ref", "src")}
        self.scores = json.loads((folder / "scores.json").read_text())
        # A literal padding token is padding to COMET and text here (docs/utilities.md).
        self.compared = np.array([not any(pad in "".join(row.values()) for pad in ("<pad>", "[PAD]")) for row in rows])

    def largest_difference(self, utility: Utility, name: str, key: str) -> float:
        references = None if key == "noref" else self.texts["ref"]
        scores = utility.score(self.texts["mt"], references, self.texts["src"])
        return float(np.abs(scores - self.scores[name][key])[self.compared].max())


@pytest.fixture(scope="module")
def goldens(shared_data: Path) -> Goldens:
    folder = shared_data / "metric_goldens"
    if not folder.is_dir():
        pytest.skip("the original programs' scores (../shared/data/metric_goldens) are not here")
    return Goldens(folder)


@pytest.fixture
def hub_cache(goldens: Goldens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    write_hub_cache(cache, {name: goldens.folder / "encoders" / file for name, file in ENCODERS.items()})
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    return cache


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(("name", "key"), CASES)
def test_equal_to_the_original_programs(goldens: Goldens, name: str, key: str) -> None:
    utility = load_utility(str(goldens.folder / name), **({"reference_free": True} if key == "noref" else {}))
    assert goldens.largest_difference(utility, name, key) < 1e-5
    assert np.std(goldens.scores[name][key]) > 1e-3, "scores must differ, or equality shows nothing"


@pytest.mark.parametrize("key", ["f1", "f1_idf"])
def test_bertscore_equals_bert_score(goldens: Goldens, key: str) -> None:
    golden = goldens.scores["bertscore_roberta"]
    folder = str(goldens.folder / "bertscore_roberta")
    utility = load_utility("bertscore", checkpoint=folder, layer=golden["layer"], idf=key == "f1_idf")
    hypotheses, references = ([goldens.texts[side][k] for k in golden["inputs"]] for side in ("mt", "ref"))
    np.testing.assert_allclose(utility.score(hypotheses, references), golden[key], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "encoder"), [("xlite", "microsoft/mdeberta-v3-base"), ("reg_wmt22", "xlm-roberta-large")]
)
def test_encoders_without_tokenizer_json(goldens: Goldens, hub_cache: Path, name: str, encoder: str) -> None:
    next(hub_cache.glob(f"models--{encoder.replace('/', '--')}/snapshots/*/tokenizer.json")).unlink()
    utility = load_utility(str(goldens.folder / name))
    if not is_protobuf_available():
        with pytest.raises(ImportError, match=r"has no tokenizer\.json.*pip install protobuf"):
            goldens.largest_difference(utility, name, "full")
    else:
        assert goldens.largest_difference(utility, name, "full") < 1e-5


SOURCE = "これはテストです"
HYPOTHESES = [
    "this is a test",
    "another test",
    "this is a fest",
    "Producția de zahăr primă va fi exprimată în ceea ce privește zahărul alb;",
]
REFERENCES = ["ref", "this is a test", "producţia de zahăr brut se exprimă în zahăr alb;"]
# Name, options, scores of each hypothesis (a row) against each reference; reference-free ones have one column.
PUBLISHED = [
    (
        "bleurt-20-d12",
        {},
        [
            [0.10943, 0.97992, 0.08830],
            [0.06851, 0.59438, 0.03788],
            [0.12863, 0.43761, 0.08151],
            [0.16558, 0.17050, 0.65812],
        ],
    ),
    (
        "comet",
        {},
        [
            [0.54616, 0.99257, 0.40706],
            [0.59092, 0.81587, 0.38636],
            [0.50268, 0.75507, 0.38999],
            [0.40692, 0.37781, 0.78060],
        ],
    ),
    ("cometkiwi", {}, [[0.86415], [0.83704], [0.65335], [0.29771]]),
    (
        "metricx-24",
        {},
        [[1.88180, 0.02979, 22.75496], [2.09417, 1.20656, 23.77537], [7.01185, 7.85715, 25], [25, 24.61126, 6.35110]],
    ),
    (
        "metricx-23",
        {},
        [
            [0.93163, 0.24821, 5.53139],
            [1.53266, 0.99941, 7.54621],
            [4.34711, 5.35249, 9.13149],
            [5.28427, 6.05555, 1.33680],
        ],
    ),
    ("metricx-23-qe", {}, [[0.34737], [0.45215], [0.79827], [13.10156]]),
    (
        "xcomet-xl",
        {},
        [[0.97671, 1, 0.49054], [0.94399, 0.99120, 0.43007], [0.71786, 0.71210, 0.30775], [0.21788, 0.22079, 0.61004]],
    ),
    (
        "xcomet-lite",
        {},
        [
            [0.75441, 0.93626, 0.52062],
            [0.65309, 0.74183, 0.42666],
            [0.42499, 0.52537, 0.36234],
            [0.36428, 0.36428, 0.70672],
        ],
    ),
    (
        "bertscore",
        {"checkpoint": "FacebookAI/roberta-large", "layer": 17},
        [
            [0.850776, 1, 0.778405],
            [0.894083, 0.916118, 0.774659],
            [0.856473, 0.945709, 0.776584],
            [0.752592, 0.776547, 0.926071],
        ],
    ),
]


@pytest.mark.network
@pytest.mark.parametrize(("name", "options", "scores"), PUBLISHED, ids=[case[0] for case in PUBLISHED])
def test_published_weights_give_known_scores(name: str, options: dict, scores: list[list[float]]) -> None:
    utility = load_utility(name, device="cpu", **options)
    columns = len(scores[0])
    hypotheses = [text for text in HYPOTHESES for _ in range(columns)]
    references = REFERENCES[:columns] * len(HYPOTHESES)
    found = utility.score(hypotheses, references, [SOURCE] * len(hypotheses))
    np.testing.assert_allclose(found.reshape(-1, columns), scores, atol=1e-3 * max(1.0, utility.scale / 5))


CARDS = [
    ("bleurt-20", (0.9990497, 0.7930182)),
    ("bleurt-20-d12", (0.9604414, 0.8080050)),
    ("bleurt-20-d6", (0.9636925, 0.7895471)),
    ("bleurt-20-d3", (0.9514875, 0.8009381)),
    ("bleurt-large-128", (1.0888319, 0.8341826)),
]


@pytest.mark.network
@pytest.mark.parametrize(("name", "scores"), CARDS)
def test_golden_scores_of_the_model_cards(name: str, scores: tuple[float, float]) -> None:
    utility = load_utility(name, device="cpu")
    references = ["a bird chirps by the window", "this is a random sentence"]
    candidates = ["a bird chirps by the window", "this looks like a random sentence"]
    np.testing.assert_allclose(utility.score(candidates, references), scores, atol=1e-3)


@pytest.mark.network
def test_golden_scores_of_bleurt_base() -> None:
    texts = ["hello there", "general kenobi"]
    scores = load_utility("bleurt-base-128", device="cpu").score(texts, texts)
    np.testing.assert_allclose(scores, [1.0295498, 1.0445426], atol=1e-3)
