"""Reasoning of Mistral models; they open it themselves where the template does not. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

PARSER = thinking_parser("mistral", Block(("[THINK]",), ("[/THINK]",)))
