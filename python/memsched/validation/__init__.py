"""The independent validator: it shares no code with what it checks."""
