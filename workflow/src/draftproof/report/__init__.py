"""Let a person see the results."""
