"""Is it noise or a bug? False alarms on clean runs, and the smallest errors that are found."""
