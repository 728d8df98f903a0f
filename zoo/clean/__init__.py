"""Correct training of many kinds of models, in which nothing may be found."""
