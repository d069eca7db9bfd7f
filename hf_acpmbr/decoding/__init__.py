"""Matrix → choice. One file for each decoder, one line here."""

from __future__ import annotations

from .acpmbr import ACPMBR
from .aggregation import AggregationMBR
from .base import Decoder, Problem
from .centroid import CentroidMBR
from .coarse_to_fine import CoarseToFine
from .decision import Decision, Ranked
from .distilled import DistilledMBR
from .diverse import DiverseMBR
from .ensemble import EnsembleMBR
from .halving import HalvingMBR
from .map import MAP
from .mbr import MBR
from .model_based import ModelBasedMBR
from .n_by_s import NByS
from .oracle import Oracle
from .pmbr import PMBR
from .pruning import PruningMBR
from .qe import QEFilterMBR, QERerank

DECODERS: dict[str, type[Decoder]] = {
    decoder.name: decoder
    for decoder in (
        ACPMBR,
        MBR,
        PMBR,
        DistilledMBR,
        MAP,
        Oracle,
        NByS,
        PruningMBR,
        HalvingMBR,
        AggregationMBR,
        CentroidMBR,
        ModelBasedMBR,
        CoarseToFine,
        QERerank,
        QEFilterMBR,
        DiverseMBR,
        EnsembleMBR,
    )
}


def decoder_class(name: str) -> type[Decoder]:
    """The class of a decoder by name; its fields are its options."""
    if name not in DECODERS:
        raise ValueError(f"decoder {name!r} is unknown: choose one of {', '.join(DECODERS)}")
    return DECODERS[name]


__all__ = [
    "ACPMBR",
    "DECODERS",
    "MAP",
    "MBR",
    "PMBR",
    "AggregationMBR",
    "CentroidMBR",
    "CoarseToFine",
    "Decision",
    "Decoder",
    "DistilledMBR",
    "DiverseMBR",
    "EnsembleMBR",
    "HalvingMBR",
    "ModelBasedMBR",
    "NByS",
    "Oracle",
    "Problem",
    "PruningMBR",
    "QEFilterMBR",
    "QERerank",
    "Ranked",
    "decoder_class",
]
