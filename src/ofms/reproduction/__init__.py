"""What the paper measured, run again: its tables and its figure, cell by cell, beside the published figures."""
