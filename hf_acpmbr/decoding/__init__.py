"""Matrix → choice. One file for each decoder; `hf_acpmbr.registry` has them by name."""

from __future__ import annotations

from ..registry import DECODERS
from .aggregation import AggregationMBR
from .base import Decoder, Texts
from .centroid import CentroidMBR
from .coarse_to_fine import CoarseToFine
from .completing import PMBR, AgreementPMBR
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
from .problem import Problem
from .pruning import PruningMBR
from .qe import QEFilterMBR, QERerank
from .rounds import RoundsMBR

__all__ = [
    "DECODERS",
    "MAP",
    "MBR",
    "PMBR",
    "AggregationMBR",
    "AgreementPMBR",
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
    "RoundsMBR",
    "Texts",
]
