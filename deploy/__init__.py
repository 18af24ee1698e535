"""How gpugrid is run: `local` is one machine without Docker, the other folders are data for other platforms.

Owns processes, ports, files and the embedded broker; knows nothing of GPUs, jobs or grids, and imports no service.
Read next: `deploy/local/__init__.py`.
"""
