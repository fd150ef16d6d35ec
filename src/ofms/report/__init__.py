"""The HTML report of runs; descriptions of dictionaries and bounds."""
