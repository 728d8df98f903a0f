"""What the project's own tests and examples need to run frameworks where they usually do not."""
