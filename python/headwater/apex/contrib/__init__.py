"""`apex.contrib`."""
