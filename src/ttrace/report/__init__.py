"""Stage 7 of 7: report.

Enters: a result. Leaves: what people read. It must not know how the result came about.
"""
