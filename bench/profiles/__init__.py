"""Makes the profiles that ship with memsched: `python -m bench.profiles`."""
