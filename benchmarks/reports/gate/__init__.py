"""What one check leaves behind: a renderer for each form, all of the same rows.  None of them decides.

Labels, phases, errors and paths come from records and command lines that anyone may have written: each form has its own
way of keeping them text.
"""
