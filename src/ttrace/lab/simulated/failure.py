"""How simulated ranks fail; it imports nothing, since every worker catches it."""


class SimulationFailed(Exception):
    """A rank raised, or none could go on; the message has all that is to be told."""
