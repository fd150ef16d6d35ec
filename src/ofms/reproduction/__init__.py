"""Reproduce the paper's tables and figure cell by cell, next to the published figures."""
