"""Which user of this machine is at the other end of a local connection.

Flower's runtime API (of SuperLinks and SuperNodes) and control API serve this machine without authentication: any of
its users could read and send messages, or start runs with code of their own. On Linux the kernel knows who has a
socket, so that only the user of the process itself, and root, are served.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))

Address = tuple[str, int]


def is_own_connection(client: Address, server: Address) -> bool:
    """Whether the socket of a local client belongs to this user or to root; True where the kernel does not say."""
    if not any(table.exists() for table in _TABLES):
        return True
    return owner_of(client, server) in (0, os.geteuid())


def owner_of(client: Address, server: Address) -> int | None:
    """The user whose socket is connected from `client` to `server`, both of this machine; None if there is none."""
    wanted = _plain(client), _plain(server)
    for local, remote, owner in _sockets(client[1]):
        if (local, remote) == wanted:
            return owner
    return None


def _sockets(port: int) -> Iterator[tuple[Address, Address, int]]:
    """The TCP sockets of this machine's processes with a port: own address, other address, owner."""
    wanted = f":{port:04X} "
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            # A busy server has thousands of them.
            if wanted not in line:
                continue
            fields = line.split()
            # The kernel gives closed sockets, which no process has (inode 0), to root.
            if fields[9] != "0":
                yield _address(fields[1]), _address(fields[2]), int(fields[7])


def _address(text: str) -> Address:
    """An address as the kernel writes it: words of 32 bits in the byte order of the machine.

    >>> import sys
    >>> _address("0100007F:2384" if sys.byteorder == "little" else "7F000001:2384")
    ('127.0.0.1', 9092)
    """
    digits, _, port = text.partition(":")
    words = [int(digits[start : start + 8], 16) for start in range(0, len(digits), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return _plain((socket.inet_ntop(family, packed), int(port, 16)))


def _plain(address: Address) -> Address:
    """With an IPv4 address that is written as IPv6 in its own form."""
    found = ipaddress.ip_address(address[0].partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found), int(address[1])
