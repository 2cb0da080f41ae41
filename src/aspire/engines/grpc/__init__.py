"""The federation: a server and sites that do not trust each other, over mutual TLS."""
