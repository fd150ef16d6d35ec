"""Errors of a deployment's processes. Imports nothing, so that the command can name them without Flower."""

from __future__ import annotations


class ProcessEnded(Exception):
    """A process that should have kept running ended."""
