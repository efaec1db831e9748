"""Placeholder docstring, replaced by the owner of this package."""
