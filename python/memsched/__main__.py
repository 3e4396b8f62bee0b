"""`python -m memsched`: the command line."""

from memsched.cli import main

main()
