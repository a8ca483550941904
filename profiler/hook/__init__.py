"""This folder stands first on the search path of the commands that ``nooom measure`` runs, for its sitecustomize.py."""
