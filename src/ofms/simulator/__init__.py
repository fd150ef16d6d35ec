"""Many clients on one machine: fused on the engine, or one at a time through messages."""
