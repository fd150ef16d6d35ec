"""The server of a fleet: exchanges, validation of messages, checkpoints, keys, status. No network in it."""
