"""A sweep over torch: what it computes on two ranks against what it computes on one."""
