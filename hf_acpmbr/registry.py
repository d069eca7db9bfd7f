"""The stages by name: one line for each variant. Utilities have their own table (`utilities/load.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .protocols import Completer, Observation, Sampler
from .stage import Registry

if TYPE_CHECKING:
    from .decoding.base import Decoder

SAMPLERS: Registry[Sampler] = Registry(
    "sampler",
    {
        "auto": "sampling.automatic:Automatic",
        "prefix-sharing": "sampling.prefix_sharing:PrefixSharing",
        "chunked": "sampling.chunked:Chunked",
        "beam-search": "sampling.beam_search:BeamSearch",
    },
)
OBSERVATIONS: Registry[Observation] = Registry(
    "observation",
    {
        "balanced": "observation.balanced:Balanced",
        "uniform": "observation.uniform:Uniform",
    },
)
COMPLETERS: Registry[Completer] = Registry(
    "completer",
    {
        "als": "completion.als:ALS",
        "agreement-als": "completion.agreement_als:AgreementALS",
        "transfer": "completion.transfer:Transfer",
    },
)
DECODERS: Registry[Decoder] = Registry(
    "decoder",
    {
        "rounds": "decoding.rounds:RoundsMBR",
        "acpmbr": "decoding.completing:AgreementPMBR",
        "mbr": "decoding.mbr:MBR",
        "pmbr": "decoding.completing:PMBR",
        "distilled-mbr": "decoding.distilled:DistilledMBR",
        "map": "decoding.map:MAP",
        "oracle": "decoding.oracle:Oracle",
        "n-by-s": "decoding.n_by_s:NByS",
        "pruning": "decoding.pruning:PruningMBR",
        "halving": "decoding.halving:HalvingMBR",
        "aggregation": "decoding.aggregation:AggregationMBR",
        "centroid": "decoding.centroid:CentroidMBR",
        "model-based": "decoding.model_based:ModelBasedMBR",
        "coarse-to-fine": "decoding.coarse_to_fine:CoarseToFine",
        "qe": "decoding.qe:QERerank",
        "qe-filter": "decoding.qe:QEFilterMBR",
        "diverse": "decoding.diverse:DiverseMBR",
        "ensemble": "decoding.ensemble:EnsembleMBR",
    },
)
