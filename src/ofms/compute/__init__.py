"""Losses, scores and updates on tensors: `protocol.py` is the interface, `threads.py` implements it on this machine."""
