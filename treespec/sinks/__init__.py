"""Where records go: the run folder (the truth), W&B and the terminal (views)."""
