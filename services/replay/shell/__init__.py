"""The bundled files, the publisher, the collector and the terminal view around the core."""
