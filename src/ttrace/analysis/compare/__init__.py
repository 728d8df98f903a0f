"""Stage 3 of 8: compare.

Enters: alignments. Leaves: what was measured of every pair; nothing is judged here.
measure.py measures pairs, sketched.py those of fingerprints, loss_scale.py finds the factor that a
split batch explains and where ranks share out the loss, tokens.py leaves out what a router sent
elsewhere, grain.py finds values of fewer bits.
"""

from ttrace.analysis.compare.grain import Asked, Precisions, is_witnessed, precisions, source_of
from ttrace.analysis.compare.loss_scale import LossScale, find_isolated_scale, find_loss_scale
from ttrace.analysis.compare.measure import Comparator
from ttrace.analysis.compare.measured import Measured, Unit
from ttrace.analysis.compare.tokens import moved_before

__all__ = [
    "Asked",
    "Comparator",
    "LossScale",
    "Measured",
    "Precisions",
    "Unit",
    "find_isolated_scale",
    "find_loss_scale",
    "is_witnessed",
    "moved_before",
    "precisions",
    "source_of",
]
