"""Anyone's estimator as a source: what one is, where they are found, and adapters for some that others publish.

An estimator is one function, ``(Case, ModelShape) -> Mapping[str, int] | None``: what the case's peak is made of, in
bytes by component, or None where it says nothing about such a case.  A component that is one of nooom's words
(``parameters``, ``gradients``, ``optimizer``, ``activations``, ``logits``, ``kv_cache``, ``inputs``, ``workspace``,
``rounding``, ``other``) is compared with the other sources' under that word; any other word stands for itself.

It is asked for as ``--estimator module:function``, the module being installed or in the current folder, or by a name
that a distribution gives it::

    [project.entry-points."nooom.estimators"]
    my-estimator = "my_package.estimates:estimate"
"""
