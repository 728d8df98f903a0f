"""How long a check of fingerprints takes for many layers on many ranks."""
