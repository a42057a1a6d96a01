"""`python -m torchsmith`."""

from torchsmith.cli import main

main()
