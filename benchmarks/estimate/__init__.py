"""Estimates of what runs and checks cost, beside what they really cost."""
