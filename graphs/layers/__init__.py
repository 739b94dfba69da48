"""Layers of the model graphs; everything here is traced, so it holds no host code."""
