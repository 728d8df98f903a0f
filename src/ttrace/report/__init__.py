"""Stage 8 of 8: report.

Enters: a result. Leaves: what people read. It must not know how the result came about.
"""
