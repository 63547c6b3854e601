"""A schedule in time with the words around it, as pages and pictures draw it."""
