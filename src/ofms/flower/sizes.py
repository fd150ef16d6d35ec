"""Bounds on the sizes of messages, checked before memory is allocated for them."""

from __future__ import annotations

from ofms.core.messages import Catalogue

# What a message has besides models: a welcome describes every model, a report has some numbers per model.
_MARGIN = 16 * 2**20


def largest_message(budget: int) -> int:
    """Bytes of the largest message that a device accepts: models that fit its budget."""
    return budget + _MARGIN


def largest_reply(catalogue: Catalogue) -> int:
    """Bytes of the largest reply that the server app accepts: updates of all models."""
    # Some policies fine-tune two copies of a model.
    return 2 * int(catalogue.storage.sum()) + _MARGIN


def largest_request(catalogue: Catalogue) -> int:
    """Bytes of the largest request of a node that the SuperLink reads; it leaves room for models added later."""
    return 2 * largest_reply(catalogue)
