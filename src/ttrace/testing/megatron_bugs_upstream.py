"""Further bugs."""
