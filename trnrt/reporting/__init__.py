"""What a production log says: read, summed up, printed and drawn."""
