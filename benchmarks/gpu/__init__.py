"""Costs of recording on a GPU: one script, which needs torch and nothing else that is not there."""
