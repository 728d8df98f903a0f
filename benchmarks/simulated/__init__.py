"""64 simulated ranks on a laptop: correct layouts stay silent, and planted bugs are found."""
