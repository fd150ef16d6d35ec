"""Runs: configuration, presets, experiments, run folders, checkpoints, results."""
