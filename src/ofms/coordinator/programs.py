"""Devices' programs by the names in their messages: two that take turns have one key."""

from __future__ import annotations

_MOST_NAMES = 20
_LONGEST_NAME = 64


class Programs:
    """The programs that sent messages for each device, the last one at the end.

    A program that is restarted has a new name. One that comes back after another one had its turn was not restarted:
    both run, or the store is an earlier one, from a backup.
    """

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}

    def returns(self, client: int, name: object) -> bool:
        """Whether the program of a message comes back after another one; devices of earlier versions have no name.

        >>> programs = Programs()
        >>> [programs.returns(0, name) for name in ("a", "a", "b", "b", "a")]
        [False, False, False, False, True]
        """
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            return False
        names = self._names.setdefault(client, [])
        if names and names[-1] == name:
            return False
        known = name in names
        self._names[client] = [*(each for each in names if each != name), name][-_MOST_NAMES:]
        return known
