"""Bugs of released packages that TTrace found with nothing planted, each with twin and proof."""
