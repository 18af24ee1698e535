"""Intake's outside: `app.py` (faust, start and stop), `http.py` (the HTTP door), `publisher.py` (its producer)."""
