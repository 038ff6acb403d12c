"""Hugging Face configurations: from a ``config.json`` to a transformer; see ``network.read_huggingface``."""
