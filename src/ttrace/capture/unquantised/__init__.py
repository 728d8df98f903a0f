"""Modules that compute in high precision, where a run is asked what that would change."""

from ttrace.capture.unquantised.mode import HighPrecision
from ttrace.capture.unquantised.regions import Regions

__all__ = ["HighPrecision", "Regions"]
