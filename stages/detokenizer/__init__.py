"""Turns ids into text, once a step for all rows: UTF-8, stop strings, reasoning and tool parsers."""
