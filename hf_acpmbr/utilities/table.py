"""The tables: utilities by name with the checkpoint each one loads, and distilled partners."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_EMBEDDED = Path(__file__).resolve().parent.parent / "embedded"
_MILLION = 10**6


@dataclass(frozen=True)
class Entry:
    """Where a utility lives.

    Args:
        module: module in `hf_acpmbr.utilities`, imported when the utility is asked for.
        factory: its class.
        options: arguments that make this name out of the class (such as the checkpoint).
    """

    module: str
    factory: str
    options: dict[str, object] = field(default_factory=dict)


def _network(module: str, factory: str, checkpoint: str, millions: float | None = None, **options: object) -> Entry:
    parameters = None if millions is None else round(millions * _MILLION)
    return Entry(module, factory, {"checkpoint": checkpoint, "parameters": parameters, **options})


def _bleurt(checkpoint: str, millions: float | None = None) -> Entry:
    return _network("bleurt", "BLEURT", checkpoint, millions)


def _metricx(checkpoint: str, millions: float, **options: object) -> Entry:
    return _network("metricx", "MetricX", f"google/metricx-{checkpoint}", millions, **options)


UTILITIES: dict[str, Entry] = {
    "chrf": Entry("chrf", "ChrF"),
    "chrf++": Entry("chrf", "ChrF", {"word_order": 2}),
    "bleu": Entry("bleu", "SentenceBLEU"),
    "ter": Entry("ter", "TER"),
    "bleurt-20": _bleurt("lucadiliello/BLEURT-20", 579),
    "bleurt-20-d12": _bleurt("lucadiliello/BLEURT-20-D12", 167),
    "bleurt-20-d6": _bleurt("lucadiliello/BLEURT-20-D6", 45),
    "bleurt-20-d3": _bleurt("lucadiliello/BLEURT-20-D3", 30),
    "bleurt-tiny-128": _bleurt("lucadiliello/bleurt-tiny-128"),
    "bleurt-tiny-512": _bleurt("lucadiliello/bleurt-tiny-512"),
    "bleurt-base-128": _bleurt("lucadiliello/bleurt-base-128"),
    "bleurt-base-512": _bleurt("lucadiliello/bleurt-base-512"),
    "bleurt-large-128": _bleurt("lucadiliello/bleurt-large-128"),
    "bleurt-large-512": _bleurt("lucadiliello/bleurt-large-512"),
    "comet": _network("comet", "COMET", "Unbabel/wmt22-comet-da", 581),
    "comet-20": _network("comet", "COMET", "Unbabel/wmt20-comet-da"),
    "comet-qe-20": _network("comet", "COMET", "Unbabel/wmt20-comet-qe-da", reference_free=True),
    "cometkiwi": _network("unified", "UnifiedMetric", "Unbabel/wmt22-cometkiwi-da", 565, reference_free=True),
    "cometkiwi-xl": _network("unified", "UnifiedMetric", "Unbabel/wmt23-cometkiwi-da-xl", 3500, reference_free=True),
    "cometkiwi-xxl": _network("unified", "UnifiedMetric", "Unbabel/wmt23-cometkiwi-da-xxl", 10700, reference_free=True),
    "unite": _network("unified", "UnifiedMetric", "Unbabel/wmt22-unite-da", reference_free=False),
    "xcomet-xl": _network("unified", "UnifiedMetric", "Unbabel/XCOMET-XL", 3500, reference_free=False),
    "xcomet-xxl": _network("unified", "UnifiedMetric", "Unbabel/XCOMET-XXL", 10700, reference_free=False),
    "xcomet-lite": _network("unified", "UnifiedMetric", "myyycroft/XCOMET-lite", 278, reference_free=False),
    "metricx-24": _metricx("24-hybrid-large-v2p6", 1230),
    "metricx-24-xl": _metricx("24-hybrid-xl-v2p6", 3700),
    "metricx-24-xxl": _metricx("24-hybrid-xxl-v2p6", 13000),
    "metricx-24-qe": _metricx("24-hybrid-large-v2p6", 1230, reference_free=True),
    "metricx-23": _metricx("23-large-v2p0", 1230),
    "metricx-23-xl": _metricx("23-xl-v2p0", 3700),
    "metricx-23-xxl": _metricx("23-xxl-v2p0", 13000),
    "metricx-23-qe": _metricx("23-qe-large-v2p0", 1230),
    "bertscore": _network("bertscore", "BERTScore", "google-bert/bert-base-multilingual-cased"),
    "embedding-cosine": _network(
        "embedding", "EmbeddingCosine", "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2", 118
    ),
    "embedded": _bleurt(str(_EMBEDDED / "utility")),
    "embedded-d1": _bleurt(str(_EMBEDDED / "utility-d1")),
    "embedded-d2": _bleurt(str(_EMBEDDED / "utility-d2")),
}

# Checkpoint folders by config.json's model_type: (module, factory).
KINDS: dict[str, tuple[str, str]] = {"bleurt": ("bleurt", "BLEURT"), "mt5": ("metricx", "MetricX")}
# COMET folders by hparams.yaml's class_identifier: (module, factory, options).
COMET_KINDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "regression_metric": ("comet", "COMET", {}),
    "referenceless_regression_metric": ("comet", "COMET", {"reference_free": True}),
    "ranking_metric": ("comet_ranking", "RankingMetric", {}),
    "unified_metric": ("unified", "UnifiedMetric", {}),
    "xcomet_metric": ("unified", "UnifiedMetric", {"reference_free": False}),
}


@dataclass(frozen=True)
class Partner:
    """A distilled utility of a target.

    Args:
        name: its name in `UTILITIES`.
        low: reduction rate r′ of the paper's Low setting (target at r = 32).
        high: reduction rate r′ of the paper's High setting (target at r = 1024).
    """

    name: str
    low: float
    high: float


# The first partner is the one that `distilled="auto"` takes. For BLEURT-20 the rates are the paper's, and D12 had its
# best BLEURT and High XCOMET; the embedded models follow the same rule: about as much spent on guide as on target.
DISTILLED: dict[str, tuple[Partner, ...]] = {
    "bleurt-20": (
        Partner("bleurt-20-d12", 8, 256),
        Partner("bleurt-20-d6", 4, 128),
        Partner("bleurt-20-d3", 2, 64),
    ),
    "embedded": (Partner("embedded-d1", 8, 256), Partner("embedded-d2", 4, 128)),
}


def distilled_partners(name: str) -> tuple[Partner, ...]:
    """Known distilled versions of a utility, the preferred one first; empty if there are none."""
    return DISTILLED.get(name.lower(), ())
