"""What an operator sees of a fleet: metrics, a health check, a live page and a dashboard; it reads the status alone."""
