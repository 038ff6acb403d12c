"""Answers: each a list of sections, built once and read as text, as a page or in a notebook; and as JSON documents."""
