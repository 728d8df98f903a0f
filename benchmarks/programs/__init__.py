"""Programs as people write them, correct and wrong: what TTrace says of each."""
