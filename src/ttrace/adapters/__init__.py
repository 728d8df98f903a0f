"""Frameworks: what an adapter answers, how one is found, and one package for each framework."""
