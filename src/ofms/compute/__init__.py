"""Losses, scores and updates on tensors: `protocol.py` is what a simulation sees, `threads.py` this machine."""
