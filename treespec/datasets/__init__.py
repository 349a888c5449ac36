"""Prompts to decode: the small set that ships with the package, or JSON lines."""
