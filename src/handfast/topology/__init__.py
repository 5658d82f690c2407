"""Where the nodes are, and how the ones that belong to us are started and ended."""
