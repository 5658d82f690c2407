"""handfast."""
