"""Tree speculation for language models: lossless, measured, pluggable."""
