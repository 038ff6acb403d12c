"""Published results, computed again: the files in cases/, how they are read, run and compared."""
