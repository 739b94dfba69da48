"""Reasoning of Inkling: a block of its own kind; the marks of blocks of text are none. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

MESSAGE, THINKING, TEXT, END = "<|message_model|>", "<|content_thinking|>", "<|content_text|>", "<|end_message|>"

PARSER = thinking_parser("inkling", Block((MESSAGE + THINKING, THINKING), (END,), dropped=(MESSAGE + TEXT, TEXT)))
