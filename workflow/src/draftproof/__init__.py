"""Prove an EAGLE-3 draft before you serve it, and know why when it disappoints."""
