"""Routers, learned and usual."""
