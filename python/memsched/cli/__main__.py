"""`python -m memsched.cli`."""

from memsched.cli import main

main()
