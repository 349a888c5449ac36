"""From a run folder to understanding; imports nothing heavy by itself."""
