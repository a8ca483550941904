"""Instruments: given a case and a workload to run, say what memory it took."""
