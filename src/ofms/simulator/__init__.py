"""Simulate many clients on one machine: all at once, or one at a time through messages."""
