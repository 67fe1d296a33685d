"""`python -m penstock.cli`: the same command, for where its script is not installed."""

from penstock.cli import main

main()
