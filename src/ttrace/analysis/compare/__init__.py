"""Stage 4 of 7: compare. Every verdict is made here."""
