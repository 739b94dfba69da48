"""Turns plans into device steps on one long-lived thread."""
