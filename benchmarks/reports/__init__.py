"""Renderers: each shows the same rows in another form.  None of them computes."""
