"""The link between a rank and its host's memory, and the memory that ranks share there."""
