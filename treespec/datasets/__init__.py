"""Prompts to decode: a set that ships along, what others publish, or JSON lines."""
