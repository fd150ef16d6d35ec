"""Losses and updates on tensors. It knows models and samples, and nothing of policies' states."""
