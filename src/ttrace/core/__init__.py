"""The vocabulary in which the stages speak: ids, layouts, records, traces, statistics, results.

Nothing here knows a stage, a framework or a user interface.
"""
