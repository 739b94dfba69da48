"""Variants of the step's last part, one file each: what happens between logits and token ids."""
