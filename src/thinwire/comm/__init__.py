"""Payloads between ranks: the only floor that knows both ranks and codecs."""
