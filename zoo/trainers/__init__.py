"""Trainers as people use them: the example of each, in many strategies, and made wrong."""

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
