"""Trainers as people use them: the example of each, in many strategies, and made wrong."""
