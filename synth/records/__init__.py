"""Validated records: their JSON files and schemas, and command lines that are read into them.

Reading is safe, and writing replaces no file of another kind.
"""
