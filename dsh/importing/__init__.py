"""The histories of other agents, taken into the database as ordinary sessions (docs/import.md)."""
