"""The jobs that get measured, one file each: the code a practitioner would write with transformers, peft, accelerate.

A workload is written once and runs unchanged under every instrument.
"""
