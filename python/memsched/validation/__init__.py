"""The independent validator. It shares no code with what it checks."""
