"""Matrix → choice. One file for each decoder, one line here."""

from __future__ import annotations

from .acpmbr import ACPMBR
from .base import Decoder, Problem
from .decision import Decision, Ranked
from .distilled import DistilledMBR
from .map import MAP
from .mbr import MBR
from .oracle import Oracle
from .pmbr import PMBR

DECODERS: dict[str, type[Decoder]] = {
    decoder.name: decoder
    for decoder in (
        ACPMBR,
        MBR,
        PMBR,
        DistilledMBR,
        MAP,
        Oracle,
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
    "Decision",
    "Decoder",
    "DistilledMBR",
    "Oracle",
    "Problem",
    "Ranked",
    "decoder_class",
]
