"""Language models over slots."""
