"""An app for the network tests: one server, and clients that behave in different ways."""
