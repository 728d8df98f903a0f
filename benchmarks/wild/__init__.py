"""Bugs of released packages: what TTrace says of each, and of its correct twin."""
