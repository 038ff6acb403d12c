"""The whole program measured, command by command: what a user waits for, and what it takes of the machine."""
