"""The rules of torch's functions, in one file for each kind of function; found by this folder."""
