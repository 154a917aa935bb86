"""One party holds a text and the embedding of a language model, a server the rest of it."""
