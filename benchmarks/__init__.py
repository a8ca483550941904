"""What is run, and what is made of it: the top floor, the only one that imports the other two."""
