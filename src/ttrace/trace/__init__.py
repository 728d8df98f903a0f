"""Bytes: what a run leaves on disk and how it is read back. Nothing here knows what values mean."""
