"""Candidates → choice. One file per decoder; `hf_acpmbr.config` has them by name."""

from __future__ import annotations

from ..config import DECODERS
from ..decision import Decision, Ranked
from .aggregation import AggregationMBR
from .base import Decoder, Problem, Texts
from .centroid import CentroidMBR
from .coarse_to_fine import CoarseToFine
from .diverse import DiverseMBR
from .ensemble import EnsembleMBR
from .exact import MAP, MBR, DistilledMBR, Oracle
from .halving import HalvingMBR
from .model_based import ModelBasedMBR
from .pmbr import PMBR, AgreementPMBR
from .pruning import PruningMBR
from .qe import QEFilterMBR, QERerank
from .rounds import RoundsMBR
from .sampled_references import NByS

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
