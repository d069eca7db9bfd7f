"""Candidates → choice; `hf_acpmbr.config` has them by name."""

from __future__ import annotations

from ..config import DECODERS
from ..decision import Decision, Ranked
from .aggregation import AggregationMBR, CentroidMBR
from .base import Decoder, Problem, Texts
from .diverse import DiverseMBR
from .ensemble import EnsembleMBR
from .exact import MAP, MBR, DistilledMBR, ModelBasedMBR, NByS, Oracle
from .halving import HalvingMBR
from .pmbr import PMBR, AgreementPMBR
from .pruning import PruningMBR
from .rounds import RoundsMBR
from .shortlist import CoarseToFine, QEFilterMBR, QERerank

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
