"""Pure intake: records in, messages out. Read `handler.py` for the whole, `validate.py` for the rules."""
