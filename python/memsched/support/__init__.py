"""What everything else stands on: checked arguments, JSON documents, files, units."""
