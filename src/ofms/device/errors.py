"""Errors of a device."""

from __future__ import annotations


class NotReady(Exception):
    """A prediction was requested before the first grant."""
