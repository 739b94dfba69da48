"""Builds the device that Config names."""
