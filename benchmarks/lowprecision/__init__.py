"""Training in low precision: correct runs, bugs, and a table of real scaled products on a GPU."""
