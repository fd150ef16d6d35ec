"""The server of a fleet: exchanges, validation, checkpoints, keys, status, scheduling; the network is a `Transport`."""
