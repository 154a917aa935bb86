"""The guarded SuperNode: the site's gate in a process that the app does not run in.

Nothing is imported here: the command sets its environment before Flower is loaded.
"""
