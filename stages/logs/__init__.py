"""Log lines: made where something happens, written by a thread of their own."""
