"""One client on disk: predict, feedback, letters to and from a server; no network in it."""
