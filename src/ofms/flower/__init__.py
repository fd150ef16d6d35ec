"""The transport of a fleet on Flower: two apps, their processes, the access check of the control API."""
