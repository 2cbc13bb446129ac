"""The bundle: what it may hold, keys, archive, building, verification."""
