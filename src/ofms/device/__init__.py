"""One client on disk: predicts, learns, and exchanges messages with a server; contains no networking."""
