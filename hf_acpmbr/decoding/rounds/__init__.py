"""The default decoder: rounds over those candidates that can still be the best, until little can be lost."""

from .decoder import RoundsMBR

__all__ = ["RoundsMBR"]
