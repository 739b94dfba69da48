"""Grammar engines, one file each; port.py says what an engine is."""
