"""What was measured once to answer a question: README.md says what, and how to run it again."""
