"""State that the code of a module and of a loss can change: found, watched, kept and put back."""
