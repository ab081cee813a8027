"""Prompts: the project's own set, and the shapes of local files people have."""
