"""Traces of a step that nobody ran, of any number of layers and ranks, and their checks."""
