"""Answers into the cache, from models or from files."""
