"""What the page costs: the server's work for a large cluster, and the browser's time to draw it."""
