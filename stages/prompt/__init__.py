"""Chat template and tokenizer, on their own thread."""
