"""The choice of saved activations that move to the host's memory and back."""
