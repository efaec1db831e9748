"""Measures this machine and its links for the planner: ``thinwire calibrate``.

    calibration   a network of hosts, ranks that measure together, the outcome
    worker        one rank: rounds of everything below      clock.py, sample.py
      arithmetic    copies, matrix products, transformer blocks, AdamW
      codecs        encode, decode, decode into a sum
      wires         collectives by bytes of a message
      steps         tiny training steps, for what Python costs
    hardware      a cluster file from samples               fit.py, fit_wires.py

The ranks of the lab share the processors of one machine, and they do so while they are measured:
a figure holds for as many ranks as were calibrated.
"""
