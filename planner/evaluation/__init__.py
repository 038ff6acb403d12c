"""How far off predictions are, and the fits behind shipped figures; no command of the planner needs it."""
