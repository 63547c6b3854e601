"""What several commands print: tables, sentences, JSON."""
