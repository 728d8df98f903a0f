"""From traces to a result: align, tolerance, compare, localize, diagnose, and isolation plans."""
