"""Pictures made with matplotlib."""
