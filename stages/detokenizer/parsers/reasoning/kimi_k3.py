"""Reasoning of Kimi K3; any other element ends it, and the tags of the answer's own element are no text. Core."""

from stages.detokenizer.parsers.thinking import Block, thinking_parser

OPEN, CLOSE, SEPARATOR, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
RESPONSE = (f"{OPEN}response{SEPARATOR}", f"{CLOSE}response{SEPARATOR}", f"{CLOSE}message{SEPARATOR}")

PARSER = thinking_parser(
    "kimi_k3",
    Block((f"{OPEN}think{SEPARATOR}",), (f"{CLOSE}think{SEPARATOR}", END), (OPEN, CLOSE), dropped=RESPONSE),
)
