"""The command line ``flower-ldp``: a module for each group of commands, joined in ``main``.

Modules here import only typer at their top, and the rest of the package inside the functions
that need it: ``flower-ldp --help`` must not wait for Flower, numpy or scipy.
"""
