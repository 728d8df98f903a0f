"""Programs as people write them: correct ones, and an edit that makes each of them wrong."""
