"""The sandbox of ``flower-ldp-supernode --sandbox``: apps under bubblewrap, one socket to the node.

===================  ======================================================================
module               says
===================  ======================================================================
``view``             what the operator chose; what of the machine an app is shown, and what must
                     not be among it
``seccomp``          which system calls an app may make
``inside``           the first program in the sandbox: gives up rights, starts the app; and the
                     relay, which copies bytes between two sockets
``jail``             all of it together: bubblewrap's arguments, a sandbox for one command, a
                     control group for memory and processes
``probe``            tries every way out, from inside
``command``          what the node does for ``--sandbox``: runs the probe and judges it, prints the
                     table; and Flower's app executor, outside: starts each app in a sandbox of its
                     own, and copies what it prints to the node's log
===================  ======================================================================

Nothing is imported here: ``inside`` and ``probe`` start in milliseconds.
"""
