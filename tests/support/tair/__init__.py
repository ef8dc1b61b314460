"""An emulator of a server with TairString, which is in no package registry."""
