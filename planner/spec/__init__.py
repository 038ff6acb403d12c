"""The boundary: what a user writes, with units in it, becomes a problem in SI units; nothing is imported here."""
