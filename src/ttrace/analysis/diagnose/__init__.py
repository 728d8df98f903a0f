"""Stage 7 of 8: diagnose. What kind of mistake a wrong tensor looks like."""
