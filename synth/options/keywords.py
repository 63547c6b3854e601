"""Comparison of an option's text with its keywords."""


def word(text: str) -> str:
    """Normalize text for comparison with an option's keywords."""
    return text.strip().lower()
