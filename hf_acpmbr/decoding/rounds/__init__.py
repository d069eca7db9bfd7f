"""The default decoder: rounds over those candidates that can still be the best, until little can be lost."""

from .decoder import RoundsMBR
from .model import Shrinkage
from .reference_weights import Calibration
from .state import Pace

__all__ = ["Calibration", "Pace", "RoundsMBR", "Shrinkage"]
