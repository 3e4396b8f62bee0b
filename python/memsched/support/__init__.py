"""Shared foundations: checks of arguments, JSON documents, files, units."""
