"""The command line: one file a command, no logic; heavy libraries are imported when a command runs."""
