"""`python -m penstock`, the command where its script is not on the path."""

from penstock.cli import main

main()
