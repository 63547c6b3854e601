"""`synth ui`: a page in the browser to play with schedules, and its server."""
