"""Reasoning of Llama-Nemotron, between plain tags when it thinks. Core."""

from stages.detokenizer.parsers.thinking import thinking_parser

PARSER = thinking_parser("nemotron_deci")
