"""Dialects, one file each: JSON to neutral messages and back; core."""
