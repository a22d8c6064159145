"""`python -m hierrouter_cli` is `hierrouter`."""

from hierrouter_cli.app import main

main()
