"""Chat templates in Jinja, as checkpoints bring them: dialect, limits, probing, and text that stays text."""
