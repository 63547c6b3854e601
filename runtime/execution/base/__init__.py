"""What all parts of the executor share: the interfaces between them, and the state of a step."""
