"""Which bytes are sent, and what the bytes that come back mean. Nothing here does I/O or makes a decision.

resp       commands as bytes                    keys       every key on a server, and its lifetime
commands   one encoder for each transition      claims     the codec of votes, claims and pushes
handshake  what a new connection says first     scripts/   the transitions that run on a server, in Lua
"""
