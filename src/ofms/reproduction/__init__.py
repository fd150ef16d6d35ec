"""The paper's tables and figure, run again cell by cell, beside the published figures."""
