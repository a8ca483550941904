"""Published runs played again with the versions of their time, in an environment of their own (``make oracle-old``)."""
