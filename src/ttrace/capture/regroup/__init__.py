"""Other groupings of sums, for the perturbed reference; and the codes that a run makes."""

from ttrace.capture.regroup.codes import CodesWatch, Current
from ttrace.capture.regroup.mode import Regrouping

__all__ = ["CodesWatch", "Current", "Regrouping"]
