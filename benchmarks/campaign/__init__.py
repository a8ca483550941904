"""What is made of a campaign on GPUs: its rehearsal on phantoms, and its results as committed files."""
