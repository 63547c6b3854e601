"""Pictures of shapes, and their files: SVG, PNG and PDF."""
