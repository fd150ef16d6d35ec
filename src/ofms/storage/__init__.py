"""Whole files, locks, archives, and the envelope of messages."""
