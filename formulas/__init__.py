"""Arithmetic only: the ground floor.  Imports neither torch nor anything of the two floors above."""
