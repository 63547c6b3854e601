"""Answers of the commands: tables, sentences, JSON."""
