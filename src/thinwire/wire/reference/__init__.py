"""The codecs in plain torch: readable, on any device, and the oracle that kernels must equal."""
