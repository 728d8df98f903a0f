"""Which noise contains what a correct other layout does? Yardsticks side by side."""
