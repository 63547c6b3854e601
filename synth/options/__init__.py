"""Options of a search in words, such as `40GB` or `looped:2`, and the problem that they define."""
