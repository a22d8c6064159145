"""Fuzzing by hand, guided by the code that is reached: see `noting`."""
