"""The bytes that are sent, and the meaning of the replies. Nothing here does I/O or decides anything.

resp       commands as bytes                    keys       every key on a server, and its lifetime
commands   one encoder for each transition      claims     decodes votes, claims and pushes
scripts/   the transitions that run on a server, in Lua
"""
