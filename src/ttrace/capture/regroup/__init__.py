"""Other groupings of sums, for the perturbed reference."""

from ttrace.capture.regroup.mode import Regrouping

__all__ = ["Regrouping"]
