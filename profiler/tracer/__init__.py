"""Names for memory: which tensor, of which module, by which operation, holds each block at a phase's peak.

The mode (``mode.py``) notes what every operation returned, and where in the model and the program it ran; the
allocator notes every block, with the number of the operation it was asked for in (``cuda.py``, ``cpu.py``).  The ledger
(``ledger.py``) joins the two by address and keeps what was alive at each peak; ``attribution.py`` says what it is.
"""
