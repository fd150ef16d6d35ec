"""Runs: configuration, presets, experiments, and the folder that a run leaves behind."""
