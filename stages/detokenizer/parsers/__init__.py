"""Parsers of generated text."""
