"""Tables and charts."""
