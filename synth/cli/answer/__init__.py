"""Answers that several commands print: tables, sentences, JSON."""
