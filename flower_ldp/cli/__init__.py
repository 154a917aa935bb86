"""The command line ``flower-ldp``: a module for each group of commands, joined in ``main``.

``flower-ldp --help`` must not wait for Flower, numpy or scipy, so ``main`` loads a module only when
its command is called.
"""
