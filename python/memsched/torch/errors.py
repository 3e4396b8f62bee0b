"""What `memsched.torch` raises beside the errors of all of memsched."""

from __future__ import annotations

from memsched.errors import MemschedError


class CaptureError(MemschedError):
    """A training step that no plan can hold; the message says what stood in the way."""
