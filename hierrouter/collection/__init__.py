"""Fill a cache, from models or from files."""
