"""The transport of a fleet on Flower: two apps, their processes, the gate before the control API."""
