"""Alignment: one logical tensor as both runs hold it. Plain data; nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor

Pair = tuple[LogicalTensor, LogicalTensor]  # reference, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """One id on both sides; a side that cannot be put together says why in its problem."""

    id: TensorId
    reference: LogicalTensor | None
    candidate: LogicalTensor | None
    reference_problem: str = ""
    candidate_problem: str = ""
    # The side that lacks this id stored it under another one, because the tensor was the same
    # object.
    stored_elsewhere: bool = False
    names_rows: bool = False  # numbers of rows, which name the same rows in both runs
    uncertain: bool = False  # nothing says where the candidate's pieces belong

    @property
    def pair(self) -> Pair | None:
        """Both sides, when they can be measured against each other."""
        reference, candidate = self.reference, self.candidate
        if reference is None or candidate is None or reference.shape != candidate.shape:
            return None
        return None if reference.gaps or candidate.gaps else (reference, candidate)

    @property
    def whole_reference(self) -> LogicalTensor | None:
        """The reference's side, when nothing of it is missing."""
        whole = self.reference is not None and self.reference.pieces and not self.reference.gaps
        return self.reference if whole else None

    @property
    def is_kept_together(self) -> bool:
        """Whether one run has its bytes, the other only those of a tensor of which it is a use."""
        return self.stored_elsewhere and (self.reference is None) != (self.candidate is None)

    @property
    def is_judged(self) -> bool:
        """Whether a verdict is due: not where the same tensor has another name, nor where only one
        of two frameworks keeps gradients in a place of their own before they are reduced.
        """
        lacks = self.reference is None or self.candidate is None
        waits = self.id.kind is Kind.ACCUMULATED_GRAD and not self.candidate_problem
        return not self.stored_elsewhere and not (lacks and waits)
