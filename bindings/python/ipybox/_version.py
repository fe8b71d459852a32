"""The version of this package, which is that of the program."""

VERSION = "0.1.0"
