"""A database engine: Django's SQLite with writers that queue (see base.py)."""
