"""Tables and charts, of whatever is in them."""
