"""Ids of prompts from what earlier prompts had in common with them, equal to the whole encoding's always."""
