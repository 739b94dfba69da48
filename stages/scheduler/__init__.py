"""Decides what each step runs; the core is plain code, stage.py is its trio shell."""
