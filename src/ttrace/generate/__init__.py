"""The same logical values in every layout: each rank generates just its own shard."""
