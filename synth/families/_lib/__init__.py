"""What several families share; the files of papers stand beside this folder."""
