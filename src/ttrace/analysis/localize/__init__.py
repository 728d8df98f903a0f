"""Stage 6 of 8: localize.

Enters: verdicts in execution order, and which module consumed which tensor. Leaves: where the first
thing went wrong. Everything after the first wrong tensor may be its consequence, so only the
frontier is blamed. It must not know traces or tensors.

    first wrong tensor              blamed
    output of a module              that module, forward
    input of a module               the code of its parent between two children
    gradient of a module's input    that module, backward
    gradient of a module's output   whoever consumed it, backward
    local gradient of a parameter   that module, weight gradient; its reduction where ranks disagree
    gradient given to the reduction the accumulation of that gradient, or of all
    reduced or main gradient        the reduction of that gradient, or of all; the accumulation
    gradient norm, clipped gradient gradient clipping
    state of the optimizer          the optimizer step
    updated parameter               the optimizer step
    buffer                          that module
"""

from ttrace.analysis.localize.isolated import localize_isolated
from ttrace.analysis.localize.plain import localize

__all__ = ["localize", "localize_isolated"]
