"""Validated records and their JSON files: fields, schemas, safe reading, protected writing."""
