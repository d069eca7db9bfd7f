"""The stages by name: one line per variant. Utilities have their own table (`scoring/load.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import Registry

if TYPE_CHECKING:
    from .completion.base import Completer
    from .completion.observation import Observation
    from .decoding.base import Decoder
    from .sampling.base import Sampler

SAMPLERS: Registry[Sampler] = Registry(
    "sampler",
    "sampling.base:Sampler",
    {
        "auto": "sampling.automatic:Automatic",
        "prefix-sharing": "sampling.prefix_sharing:PrefixSharing",
        "chunked": "sampling.loops:Chunked",
        "beam-search": "sampling.loops:BeamSearch",
    },
)
OBSERVATIONS: Registry[Observation] = Registry(
    "observation",
    "completion.observation:Observation",
    {
        "balanced": "completion.observation:Balanced",
        "uniform": "completion.observation:Uniform",
    },
)
COMPLETERS: Registry[Completer] = Registry(
    "completer",
    "completion.base:Completer",
    {
        "als": "completion.als:ALS",
        "agreement-als": "completion.als:AgreementALS",
        "transfer": "completion.transfer:Transfer",
    },
)
DECODERS: Registry[Decoder] = Registry(
    "decoder",
    "decoding.base:Decoder",
    {
        "rounds": "decoding.rounds.decoder:RoundsMBR",
        "acpmbr": "decoding.pmbr:AgreementPMBR",
        "mbr": "decoding.exact:MBR",
        "pmbr": "decoding.pmbr:PMBR",
        "distilled-mbr": "decoding.exact:DistilledMBR",
        "map": "decoding.exact:MAP",
        "oracle": "decoding.exact:Oracle",
        "n-by-s": "decoding.sampled_references:NByS",
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
