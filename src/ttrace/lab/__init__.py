"""Runs: commands or functions on several ranks, and the experiment that is made of them."""
