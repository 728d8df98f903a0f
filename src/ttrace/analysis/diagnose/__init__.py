"""Stage 6 of 7: diagnose. What kind of mistake a wrong tensor looks like."""
