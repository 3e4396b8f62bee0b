"""What tools/fuzz.py and tests/test_fuzz.py share: valid documents, how to damage them, and what must hold of them."""
