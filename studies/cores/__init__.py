"""How checks get faster with cores, and real runs of many ranks on one machine of 16 cores."""
