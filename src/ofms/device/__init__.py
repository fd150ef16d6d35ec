"""One client on disk: it predicts, learns, and exchanges messages with a server; no network in it."""
