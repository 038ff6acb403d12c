"""Fits device and link parameters to measurements."""
