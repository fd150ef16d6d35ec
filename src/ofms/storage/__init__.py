"""Atomic files, locks, archives, and the message envelope."""
