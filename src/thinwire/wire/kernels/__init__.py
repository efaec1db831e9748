"""The same operations as the reference, fast. Each kernel equals the reference bit for bit."""
