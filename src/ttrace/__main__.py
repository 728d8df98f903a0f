"""`python -m ttrace` is the command line."""

from ttrace.cli import main

main()
