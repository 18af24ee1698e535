"""The contract: every event as a frozen struct, the codec, the topics as data, the frozen JSON Schemas and examples.

Imports msgspec and the standard library only. Structs are the writing surface, `json/*.schema.json` the frozen truth:
`python -m schemas write` emits them, a contract test fails on any difference. Read README.md before adding a field.
"""
