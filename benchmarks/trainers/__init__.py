"""`make bench-trainers`: the matrix of trainers and strategies."""
