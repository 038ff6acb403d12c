"""Studies of measured distributed runs: what each part of their prediction is worth, and the page of errors."""
